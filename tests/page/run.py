"""Shows the live page in a real Chromium and compares it with what `segue` reports; prints a table.

`make page`, or `make page ARGS="--only keyboard"` for the checks whose name has this in it. `--pictures FOLDER` keeps
pictures of the page at rest and in the midst of a cutover.
"""

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
import traceback

from browser import Browser
from clusters import Certified, Cluster, Demo, LargeKeyspace, Operated, Process, TwoKeyspaces, call, until

# CPU time of the page's main thread for each drawing of 65,536 partitions, in milliseconds. Frame times are only reported: on a
# machine that does other work they say nothing of the page.
MOST_PER_DRAWING = 60.0


class Run:
    """The state that the checks share: the program, a folder, the browser, and each cluster from its first use on."""

    def __init__(self, segue, folder, pictures):
        self.segue, self.folder, self.pictures = segue, folder, pictures
        self.browser = Browser(folder)
        self.others = []
        self.notes = []
        self.clusters = {}

    def cluster(self, kind, *arguments):
        if kind not in self.clusters:
            folder = os.path.join(self.folder, kind.__name__)
            os.makedirs(folder)
            self.clusters[kind] = kind(self.segue, folder, *arguments)
        return self.clusters[kind]

    def another_browser(self, folder, name, *arguments, **settings):
        self.others.append(Browser(os.path.join(folder, f"profile-{name}"), *arguments, **settings))
        return self.others[-1]

    def demo(self):
        return self.cluster(Demo, "--partitions", "96", "--duration", "600s", "--rate", "300", "--clients", "16")

    def picture(self, name, whole=True):
        if self.pictures:
            os.makedirs(self.pictures, exist_ok=True)
            self.browser.screenshot(os.path.join(self.pictures, f"{name}.png"), whole)

    def equals_status(self, admin):
        """Waits until page and /status show the same revision, compares them, and returns what both show."""
        def same_revision():
            keyspace, page = admin.keyspace(), self.browser.read()
            return (keyspace, page) if keyspace and page["revision"] == str(keyspace["revision"]) else None

        keyspace, page = until(same_revision, "the page at the revision of /status")
        assert page["leader"] == (keyspace["leader"] or "none"), page
        assert page["partitions"].replace(",", "") == str(keyspace["partitions"]), page
        assert page["unowned"].replace(",", "") == str(keyspace["unowned"]), page
        assert page["pods"] == [[pod["name"], str(pod["partitions"])] for pod in keyspace["pods"]], (page, keyspace)
        assert page["draining"] == [pod["name"] for pod in keyspace["pods"] if pod["status"] != "Ready"], page
        assert [row[0] for row in page["routers"]] == keyspace["routers"], page
        shown = sorted((row[0], row[1], row[2], row[4]) for row in page["handoffs"])
        handoffs = keyspace["handoffs"][:50]
        assert shown == sorted((str(one["partition"]), f"{one['from'] or 'nobody'} → {one['to']}", one["phase"],
                                one["waiting_for"]) for one in handoffs), (shown, handoffs)
        return keyspace, page


def the_page_equals_status_through_moves(run):
    demo = run.demo()
    run.browser.open(demo.admin.url)
    revisions, owners = set(), set()

    def moved():
        keyspace, _ = run.equals_status(demo.admin)
        revisions.add(keyspace["revision"])
        owners.add(tuple((pod["name"], pod["incarnation"], pod["partitions"]) for pod in keyspace["pods"]))
        return len(owners) >= 6

    until(moved, "six placements")
    page = run.browser.read()
    assert "p50" in page["pauses"] and "p50 0.0 ms" not in page["pauses"], page["pauses"]
    assert any(" moved from " in entry for entry in page["log"]), page
    run.notes.append(f"{len(revisions)} revisions and {len(owners)} placements compared")


def a_stuck_handoff_names_its_router(run):
    cluster = run.cluster(Cluster)
    run.browser.open(cluster.admin.url)
    run.equals_status(cluster.admin)
    stopped = cluster.routers["r-1"].process
    stopped.send_signal(signal.SIGSTOP)
    try:
        cluster.pod("b")
        page = until(lambda: (page := run.browser.read())["verdict"].startswith("Stuck") and page, "a stuck handoff")
        assert "r-1" in page["verdict"] and "r-0" not in page["verdict"], page["verdict"]
        assert page["tone"] == "bad", page
        keyspace, page = run.equals_status(cluster.admin)
        assert keyspace["handoffs"] and all("r-1" in row[4] for row in page["handoffs"]), page
        waits = dict((row[0], row[1]) for row in page["routers"])
        assert "wait for it" in waits["r-1"] and waits["r-0"] == "none waits for it", waits
        run.notes.append(page["verdict"])
        run.picture("stuck")
        show_partition(run.browser, keyspace["handoffs"][0]["partition"])
        says = "router r-1: cannot be asked: its registration has no admin address"
        until(lambda: says in (run.browser.read()["detail"] or ""), "what the router says")
        assert "router r-1 to drain, for " in run.browser.read()["detail"], run.browser.read()["detail"]
        run.picture("stuck-details")
        run.browser.press("ESCAPE")
    finally:
        stopped.send_signal(signal.SIGCONT)
    until(lambda: cluster.at_rest(["a", "b"]), "the end of the moves")
    until(lambda: run.browser.read()["tone"] == "settled", "a settled page")
    run.equals_status(cluster.admin)


def keys_alone_reach_everything(run):
    demo, browser = run.demo(), run.browser
    browser.open(demo.admin.url)
    run.equals_status(demo.admin)
    for _ in range(60):
        browser.press("TAB")
        if browser.focused() == "CANVAS in cells":
            break
    assert browser.focused() == "CANVAS in cells", browser.focused()
    browser.press("ARROW_RIGHT", "ARROW_RIGHT", "ARROW_RIGHT", "ARROW_LEFT")
    until(lambda: browser.read()["pointed"].startswith("Partition 1:"), "the second partition")
    browser.press("ENTER")
    until(lambda: (browser.read()["detail"] or "").startswith("Partition 1"), "the detail of the second partition")
    until(lambda: browser.focused() == "detail-title", "the focus in the detail")
    browser.press("ESCAPE")
    until(lambda: browser.read()["detail"] is None, "no detail")
    assert browser.focused() == "CANVAS in cells", browser.focused()
    go = browser.find("#go")
    go.send_keys("42")
    browser.press("ENTER")
    until(lambda: (browser.read()["detail"] or "").startswith("Partition 42"), "the detail of partition 42")
    browser.press("ESCAPE")


def the_page_fits_its_window(run):
    demo, browser = run.demo(), run.browser
    for width in (1440, 1024, 390):
        for dark in (False, True):
            browser.open(demo.admin.url, width, dark)
            run.equals_status(demo.admin)
            page = browser.read()
            assert page["overflow"] <= 0 and not page["clipped"], f"{page['overflow']} px too wide at {width} px; clipped: {page['clipped']}"


def the_page_reconnects_after_a_restart(run):
    demo, browser = run.demo(), run.browser
    browser.open(demo.admin.url)
    run.equals_status(demo.admin)
    demo.process.kill()
    until(lambda: browser.read()["verdict"].startswith("Not connected"), "a page without its process")
    demo.start()
    until(lambda: not browser.read()["verdict"].startswith("Not connected"), "a page that is connected again")
    run.equals_status(demo.admin)
    # The console may show only that connections were refused meanwhile.
    refused = browser.logs()
    assert refused and all("/events" in message and "net::ERR_" in message for message in refused), refused


def a_stream_that_ends_is_continued_unnoticed(run):
    demo, browser = run.demo(), run.browser
    browser.open(demo.admin.url)
    run.equals_status(demo.admin)
    browser.driver.execute_script("""
        window.verdicts = new Set();
        setInterval(() => window.verdicts.add(document.getElementById('headline').dataset.state + document.getElementById('verdict').textContent), 100);
    """)
    def streams():
        assert not browser.logs(), "the console is silent"
        return browser.requests.count(f"{demo.admin.url}/events")
    began = streams()
    until(lambda: streams() > began, "the next stream")
    run.equals_status(demo.admin)
    verdicts = browser.driver.execute_script("return [...window.verdicts]")
    assert not any("Not connected" in verdict for verdict in verdicts), verdicts


def sixty_five_thousand_partitions_stay_fluid(run):
    large = run.cluster(LargeKeyspace)
    run.browser.open(large.admin.url)
    run.equals_status(large.admin)
    done, moved = threading.Event(), {}

    def move():
        choose = random.Random(7)
        while not done.wait(0.1):
            owners = {choose.randrange(large.PARTITIONS): choose.choice(large.pods) for _ in range(100)}
            large.assign(owners)
            moved.update(owners)

    mover = threading.Thread(target=move)
    mover.start()
    try:
        measured = run.browser.frames(6)
    finally:
        done.set()
        mover.join()
    frames = sorted(measured["frames"])
    p50, p95, longest = frames[len(frames) // 2], frames[int(len(frames) * 0.95)], frames[-1]
    run.notes.append(f"{len(frames)} frames while 1,000 partitions a second moved: p50 {p50:.0f} ms, p95 {p95:.0f} ms, "
                     f"longest {longest:.0f} ms; {len(measured['tasks'])} tasks above 50 ms")
    assert measured["draws"] > 0, "the map was not drawn"
    per_drawing = measured["cpu"] / measured["draws"]
    run.notes.append(f"{measured['draws']} drawings of {per_drawing:.0f} ms CPU time each")
    assert per_drawing <= MOST_PER_DRAWING, run.notes[-1]
    run.equals_status(large.admin)
    for partition in random.Random(8).sample(sorted(moved), 5):
        go = run.browser.find("#go")
        go.clear()
        go.send_keys(str(partition))
        run.browser.press("ENTER")
        owner = large.owners[partition]
        until(lambda: f"Partition {partition}\n" in (text := run.browser.read()["detail"] or "") and f"\n{owner}\n" in text,
              f"{owner} as the owner of partition {partition}")
    run.picture("large")


def show_partition(browser, partition):
    browser.type("#go", str(partition))
    browser.press("ENTER")
    until(lambda: (browser.read()["detail"] or "").startswith(f"Partition {partition}\n"), "the detail of the partition")


def confirm(browser, token=None, why=""):
    """Confirms the dialog, and returns the answer that it shows."""
    if token is not None:
        browser.type("#action-token", token)
    browser.type("#action-why", why)
    browser.click("#action-confirm")
    return until(lambda: (text := browser.read()["answer"]) and not text.startswith("Waiting") and text, "an answer")


def the_details_explain_a_partition(run):
    cluster, browser = run.cluster(Operated), run.browser
    browser.open(cluster.admin.url)
    run.equals_status(cluster.admin)
    show_partition(browser, 5)

    def explains(reason):
        report, detail = cluster.explain(5), browser.read()["detail"] or ""
        lines = [f"{one['pod']} {one['verdict']}, {one['reason']}" for one in report["candidates"]] + report["next_steps"]
        return any(reason in line for line in lines) and all(line in detail for line in lines)

    until(lambda: explains("it has the partition"), "the candidates on the page")
    cluster.change("POST", "/v1/pods/b/drain")
    try:
        until(lambda: explains("it is drained by"), "the drain among the reasons")
        run.picture("explained")
        page = browser.read()
        assert page["draining"] == ["b"] and not page["clipped"], page["clipped"]
    finally:
        cluster.change("DELETE", "/v1/pods/b/drain")
    until(lambda: cluster.at_rest(["a", "b"]), "the share of the pod")
    browser.press("ESCAPE")


def an_action_moves_a_partition(run):
    cluster, browser = run.cluster(Operated), run.browser
    browser.open(cluster.admin.url)
    run.equals_status(cluster.admin)
    owner = cluster.explain(3)["owner"]
    other = {"a": "b", "b": "a"}[owner]
    show_partition(browser, 3)
    browser.click("#move")
    asked = browser.read()["dialog"]
    assert f"Move partition 3 to {other}?" in asked and f"is on {owner}" in asked, asked
    assert cluster.explain(3)["owner"] == owner, "nothing happens before the confirmation"
    browser.type("#action-who", "ann")
    answer = confirm(browser, cluster.TOKEN, "hot <b>today</b>")
    assert answer.startswith(f"Done: partition 3 moves to {other}"), answer
    until(lambda: cluster.explain(3)["owner"] == other, "the move")
    assert "ann from 127.0.0.1 (hot <b>today</b>)" in cluster.explain(3)["pinned"], cluster.explain(3)
    browser.click("#action-close")
    until(lambda: f"Owner\n{other}\n" in browser.read()["detail"], "the new owner on the page")
    assert "(hot <b>today</b>)" in browser.read()["detail"], browser.read()["detail"]
    assert browser.focused() == "move", browser.focused()
    browser.click("#unpin")
    answer = confirm(browser)
    assert answer.startswith("Done: partition 3 goes where the strategy places it"), answer
    browser.click("#action-close")
    run.equals_status(cluster.admin)


def a_refused_action_shows_the_reason(run):
    cluster, browser = run.cluster(Operated), run.browser
    # A reload forgets the token.
    browser.open(cluster.admin.url)
    run.equals_status(cluster.admin)
    drain, undrain = (f'[data-action="{action}"][data-subject="b"]' for action in ("drain", "undrain"))
    until(lambda: any("data-action" in act for act in browser.read()["acts"]), "the actions")
    browser.click(drain)
    answer = confirm(browser, "tok\u2013en")
    assert answer == "The token may only contain visible ASCII characters.", answer
    answer = confirm(browser, "wrong")
    assert answer == "Refused: this is not the token of this endpoint.", answer
    assert not cluster.admin.keyspace()["drains"]
    answer = confirm(browser, cluster.TOKEN)
    assert answer.startswith("Done: pod b gives up its partitions"), answer
    browser.click("#action-close")
    until(lambda: cluster.at_rest(["a"]) or all(pod["partitions"] == 0 for pod in cluster.admin.keyspace()["pods"]
                                                if pod["name"] == "b"), "an empty pod")
    # A page that still shows the partition on the drained pod offers the other one.
    run.equals_status(cluster.admin)
    show_partition(browser, 5)
    browser.click("#move")
    answer = confirm(browser)
    assert answer.startswith("Refused: pod b is drained"), answer
    run.notes.append(answer)
    # The browser reports responses of 400 and above.
    refused = browser.logs()
    assert all("401" in message or "409" in message for message in refused), refused
    browser.click("#action-close")
    browser.press("ESCAPE")
    browser.click(undrain)
    answer = confirm(browser)
    assert answer.startswith("Done: pod b may be given partitions again"), answer
    browser.click("#action-close")
    until(lambda: cluster.at_rest(["a", "b"]), "the share of the pod")


# Holds the next answer back until `release()`, and notes once the page has it.
HOLD = """
const send = window.fetch;
const released = new Promise((resolve) => { window.release = resolve; });
window.fetch = async (...asked) => {
  window.fetch = send;
  const response = await send(...asked);
  const read = response.json.bind(response);
  response.json = async () => {
    const said = await read();
    await released;
    setTimeout(() => { window.isLate = true; });
    return said;
  };
  return response;
};
"""


def an_answer_stays_with_its_action(run):
    cluster, browser = run.cluster(Operated), run.browser
    browser.open(cluster.admin.url)
    run.equals_status(cluster.admin)
    show_partition(browser, 5)
    browser.driver.execute_script(HOLD)
    browser.click("#pin")
    browser.type("#action-token", cluster.TOKEN)
    browser.click("#action-confirm")
    until(lambda: cluster.explain(5)["pinned"], "the pin")
    # As a second Escape does.
    browser.driver.execute_script("document.getElementById('action').close()")
    until(lambda: browser.find("#unpin").is_displayed(), "the pin on the page")
    browser.click("#unpin")
    assert browser.find("#action-confirm").is_enabled(), "another action can be confirmed"
    browser.driver.execute_script("release()")
    until(lambda: browser.driver.execute_script("return window.isLate"), "the answer of the pin")
    page = browser.read()
    assert "Unpin partition 5?" in page["dialog"] and page["answer"] == "", page
    answer = confirm(browser)
    assert answer.startswith("Done: partition 5 goes where the strategy places it"), answer
    browser.click("#action-close")


def an_action_needs_no_mouse_and_shows_text_as_text(run):
    cluster, browser = run.cluster(Operated), run.browser
    browser.open(cluster.admin.url, 390, True)
    run.equals_status(cluster.admin)

    def tab_to(name):
        for _ in range(60):
            if browser.focused() == name:
                return
            browser.press("TAB")
        assert browser.focused() == name, browser.focused()

    until(lambda: any("planner" in act for act in browser.read()["acts"]), "the actions")
    tab_to("planner")
    browser.press("ENTER")
    assert "Pause planned moves?" in browser.read()["dialog"], browser.read()
    browser.press("ESCAPE")
    until(lambda: browser.read()["dialog"] is None, "no dialog")
    assert browser.focused() == "planner" and not cluster.admin.keyspace()["paused"]
    browser.press("ENTER")
    assert browser.focused() == "action-token", browser.focused()
    markup = "<img src=x onerror=\"document.title='owned'\">"
    browser.press(cluster.TOKEN, "TAB", markup, "ENTER")
    until(lambda: browser.read()["answer"].startswith("Done: planned moves are paused"), "the pause")
    assert browser.focused() == "action-close", browser.focused()
    browser.press("ENTER")
    until(lambda: browser.focused() == "planner", "the focus where it was")
    until(lambda: any(markup in notice for notice in browser.read()["notices"]), "the pause on the page")
    browser.press("ENTER")
    page = browser.read()
    assert markup in page["dialog"] and page["images"] == 0 and page["overflow"] <= 0, page
    browser.press("TAB", "TAB", "TAB", "ENTER")
    until(lambda: browser.read()["answer"].startswith("Done: planned moves go on"), "the end of the pause")
    browser.press("ENTER")
    until(lambda: not cluster.admin.keyspace()["paused"], "no pause")


def a_handoff_is_cancelled(run):
    cluster, browser = run.cluster(Operated), run.browser
    browser.open(cluster.admin.url)
    run.equals_status(cluster.admin)
    owner = cluster.explain(9)["owner"]
    stopped = cluster.routers["r-1"].process
    stopped.send_signal(signal.SIGSTOP)
    try:
        show_partition(browser, 9)
        browser.click("#move")
        assert confirm(browser, cluster.TOKEN).startswith("Done: partition 9 moves to"), browser.read()["answer"]
        browser.click("#action-close")
        cancel = '#moves [data-action="cancel"][data-subject="9"]'
        until(lambda: any('class="acts"' in act and 'data-subject="9"' in act for act in browser.read()["acts"]), "a handoff to cancel")
        for width in (1024, 390):
            browser.resize(width)
            run.picture(f"cancel-{width}")
            assert browser.read()["overflow"] <= 0, f"{browser.read()['overflow']} px too wide at {width} px"
        browser.resize(1024)
        other = {"a": "b", "b": "a"}[owner]
        browser.click("#pin")
        asked = browser.read()["dialog"]
        assert f"Pin partition 9 to {other}?" in asked and f"Partition 9 stays on {other}" in asked, asked
        browser.click("#action-close")
        browser.click("#close")
        browser.click(cancel)
        assert f"Partition 9 stays on {owner}" in browser.read()["dialog"], browser.read()["dialog"]
        answer = confirm(browser, why="never mind")
        assert answer.startswith("Done: "), answer
        run.notes.append(answer)
        browser.click("#action-close")
        last = until(lambda: json.loads(cluster.admin.get("/v1/history?partition=9&limit=1")[0])["handoffs"][0], "its end")
        assert (last["result"], last["end_cause"]) == ("cancelled", "operator") and "never mind" in last["end_reason"], last
    finally:
        stopped.send_signal(signal.SIGCONT)
    assert cluster.explain(9)["owner"] == owner
    until(lambda: cluster.at_rest(["a", "b"]), "a cluster at rest")


def a_failed_move_is_shown_to_rest(run):
    cluster, browser = run.cluster(Operated), run.browser
    browser.open(cluster.admin.url)
    run.equals_status(cluster.admin)
    show_partition(browser, 11)
    other = {"a": "b", "b": "a"}[cluster.explain(11)["owner"]]
    text = "partition 11 does not move"

    def is_shown():
        page = browser.read()
        notices = [notice for notice in page["notices"] if notice.startswith(f"{text} for ")]
        return notices and f"{text} until " in page["detail"] and notices

    def is_shown_after_a_cancel():
        cluster.change("POST", "/v1/moves", {"partition": 11, "to": other})
        until(lambda: cluster.explain(11)["handoff"], "the move")
        cluster.change("POST", "/v1/handoffs/11/cancel")
        return until(lambda: is_shown() or (not cluster.explain(11)["resting"] and ["missed"]), "the rest on the page")

    stopped = cluster.routers["r-1"].process
    stopped.send_signal(signal.SIGSTOP)
    try:
        # Each further failure doubles the rest, so one is long enough to be seen, however busy the machine is.
        shown = until(lambda: (notices := is_shown_after_a_cancel()) != ["missed"] and notices, "the rest on the page")
        run.notes.append(shown[0])
        run.picture("resting")
    finally:
        stopped.send_signal(signal.SIGCONT)
    browser.press("ESCAPE")
    until(lambda: cluster.at_rest(["a", "b"]), "a cluster at rest")


def without_the_right_to_write_there_is_no_action(run):
    demo, browser = run.demo(), run.browser
    browser.open(demo.admin.url)
    run.equals_status(demo.admin)
    until(lambda: f"{demo.admin.url}/v1/access" in (browser.logs() or browser.requests), "the question for the right")
    show_partition(browser, 7)
    page = browser.read()
    assert page["acts"] == [], page["acts"]
    browser.press("ESCAPE")


def a_client_certificate_admits_to_actions(run):
    cluster = run.cluster(Certified)
    authority, url = cluster.authority, cluster.admin.url
    reader = run.another_browser(authority.folder, "reader", home=authority.home("reader"))
    reader.open(url)
    until(lambda: f"{url}/v1/access" in (reader.logs() or reader.requests), "the question for the right")
    show_partition(reader, 3)
    assert reader.read()["acts"] == [], reader.read()["acts"]
    browser = run.another_browser(authority.folder, "ann", authority.chromium(url), authority.home_with_certificate("ann"))
    browser.open(url)
    owner = cluster.explain(3)["owner"]
    other = {"a": "b", "b": "a"}[owner]
    show_partition(browser, 3)
    until(lambda: browser.find("#move").is_displayed(), "the action")
    browser.click("#move")
    assert not browser.find("#action-token").is_displayed(), "no token is asked for"
    answer = confirm(browser)
    assert answer.startswith(f"Done: partition 3 moves to {other}"), answer
    until(lambda: cluster.explain(3)["owner"] == other, "the move")
    for each in (reader, browser):
        console = each.logs()
        assert not console, f"the console shows {console}"
        elsewhere = [one for one in each.requests if not one.startswith((url, "data:", "chrome:"))]
        assert not elsewhere, elsewhere


def the_keyspace_is_chosen_by_keyboard_and_kept_in_the_url(run):
    cluster, browser = run.cluster(TwoKeyspaces), run.browser

    def shows(name):
        page, status = browser.read(), cluster.status(name)
        return page["revision"] == str(status["revision"]) and page["partitions"] == str(cluster.PARTITIONS[name])

    browser.open(cluster.admin.url)
    until(lambda: shows("persons"), "the first keyspace")
    for _ in range(10):
        if browser.focused() == "keyspace":
            break
        browser.press("TAB")
    assert browser.focused() == "keyspace", browser.focused()
    browser.press("ARROW_DOWN")
    until(lambda: shows("orders"), "the other keyspace")
    assert browser.driver.current_url.endswith("?keyspace=orders"), browser.driver.current_url
    browser.driver.refresh()
    until(lambda: shows("orders"), "the same keyspace after a reload")
    # An action is that of the keyspace that is shown.
    until(lambda: any("data-action" in act for act in browser.read()["acts"]), "the actions")
    browser.click("#planner")
    assert "In keyspace orders." in browser.read()["dialog"], browser.read()["dialog"]
    confirm(browser, cluster.TOKEN, "a test")
    until(lambda: cluster.status("orders")["paused"], "the pause")
    assert not cluster.status("persons")["paused"], cluster.status("persons")
    browser.click("#action-close")
    browser.driver.back()
    until(lambda: shows("persons"), "the first keyspace again")
    run.notes.append(browser.driver.current_url.split("/", 3)[3] or "/")


def a_store_that_refuses_writes_is_the_headline(run):
    cluster, browser = run.cluster(Operated), run.browser
    browser.open(cluster.admin.url)
    run.equals_status(cluster.admin)
    alarm = {"memberID": "0", "alarm": "NOSPACE"}
    call(cluster.etcd, "maintenance/alarm", {"action": "ACTIVATE"} | alarm)
    shown = "The store refuses writes, and no move begins: "
    page = until(lambda: (page := browser.read())["verdict"].startswith(shown) and page, "the refusal")
    assert page["tone"] == "bad" and "space exceeded" in page["verdict"], page
    run.notes.append(page["verdict"][:120])
    call(cluster.etcd, "maintenance/alarm", {"action": "DEACTIVATE"} | alarm)
    until(lambda: browser.read()["tone"] == "settled", "a store that accepts writes")


def a_lost_store_makes_the_page_old(run):
    cluster, browser = run.cluster(Operated), run.browser
    browser.open(cluster.admin.url)
    run.equals_status(cluster.admin)
    assert not browser.read()["old"]
    cluster.etcd.process.kill()
    page = until(lambda: (page := browser.read())["old"] and page, "an old page")
    assert page["tone"] == "bad" and page["verdict"].startswith("Old: this process has not followed the store for "), page
    run.notes.append(page["verdict"][:120])
    run.picture("old")
    until(lambda: browser.read()["verdict"] != page["verdict"], "an age that grows")


def nothing_is_loaded_from_elsewhere(run):
    demo = run.demo()
    run.browser.open(demo.admin.url)
    run.equals_status(demo.admin)
    _, headers = demo.admin.get("/")
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy, policy
    run.browser.logs()
    requests = run.browser.requests
    origins = tuple(cluster.admin.url for cluster in run.clusters.values())
    elsewhere = [url for url in requests if not url.startswith(origins) and not url.startswith(("data:", "chrome:"))]
    assert len(requests) >= 5 and not elsewhere, (requests, elsewhere)
    run.notes.append(f"{len(requests)} requests, all to the process itself")


def pictures(run):
    """Takes pictures: at rest and in the midst of a move, in both colour schemes, for a desk and for a phone."""
    arguments = ("--partitions", "384", "--pods", "5", "--duration", "600s", "--rate", "100", "--clients", "8")
    demo, browser = run.cluster(Demo, *arguments), run.browser
    browser.open(demo.admin.url)
    until(lambda: "p50" in (page := browser.read())["pauses"] and page["tone"] == "settled", "the first moves")
    for width in (1024, 390):
        for dark in (False, True):
            browser.open(demo.admin.url, width, dark)
            where = f"{width}-{'dark' if dark else 'light'}"
            until(lambda: (page := browser.read())["tone"] == "moving" and len(page["handoffs"]) >= 4, "moves")
            run.picture(f"moving-{where}")
            until(lambda: browser.read()["tone"] == "settled", "no moves")
            run.picture(f"rest-{where}")
    cluster = run.cluster(Operated)
    for width in (1024, 390):
        for dark in (False, True):
            where = f"{width}-{'dark' if dark else 'light'}"
            browser.open(cluster.admin.url, width, dark)
            until(lambda: any("data-action" in act for act in browser.read()["acts"]), "the actions")
            show_partition(browser, 3)
            run.picture(f"actions-{where}")
            browser.click("#move")
            run.picture(f"dialog-{where}", False)
            confirm(browser, "wrong", "a busy day")
            run.picture(f"refused-{where}", False)
            browser.logs()


CHECKS = [
    the_page_equals_status_through_moves,
    keys_alone_reach_everything,
    the_page_fits_its_window,
    the_page_reconnects_after_a_restart,
    a_stuck_handoff_names_its_router,
    a_stream_that_ends_is_continued_unnoticed,
    sixty_five_thousand_partitions_stay_fluid,
    without_the_right_to_write_there_is_no_action,
    the_details_explain_a_partition,
    an_action_moves_a_partition,
    a_refused_action_shows_the_reason,
    an_answer_stays_with_its_action,
    an_action_needs_no_mouse_and_shows_text_as_text,
    a_handoff_is_cancelled,
    a_failed_move_is_shown_to_rest,
    a_client_certificate_admits_to_actions,
    the_keyspace_is_chosen_by_keyboard_and_kept_in_the_url,
    a_store_that_refuses_writes_is_the_headline,
    a_lost_store_makes_the_page_old,
    # Last, because it examines the requests of all other checks.
    nothing_is_loaded_from_elsewhere,
]


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--segue", required=True, help="the binary")
    arguments.add_argument("--only", default="", help="run the checks whose name has this in it")
    arguments.add_argument("--short", action="store_true", help="leave out the check that lasts as long as a stream")
    arguments.add_argument("--pictures", help="keep pictures in this folder")
    arguments = arguments.parse_args()
    checks = [pictures] if arguments.pictures and not arguments.only else CHECKS
    chosen = [check for check in checks if arguments.only in check.__name__]
    if arguments.short:
        chosen = [check for check in chosen if check is not a_stream_that_ends_is_continued_unnoticed]
    assert chosen, f"no check has {arguments.only!r} in its name"
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    passed = 0
    with tempfile.TemporaryDirectory(prefix="segue-page-", ignore_cleanup_errors=True) as folder:
        run = None
        try:
            run = Run(arguments.segue, folder, arguments.pictures)
            for check in chosen:
                began = time.monotonic()
                run.notes = []
                try:
                    check(run)
                    console = run.browser.logs()
                    assert not console, f"the console shows {console}"
                    passed += 1
                    result = f"passed {time.monotonic() - began:.1f}s"
                except Exception:  # noqa: BLE001: whatever it is, the check has failed
                    # All lives of a process write into one log.
                    last = {process.log: process for process in Process.started}.values()
                    tails = "".join(f"--- {process.name}\n{process.tail()}" for process in last)
                    result = f"FAILED\n{traceback.format_exc()}{tails}"
                    # What its console shows belongs to this check.
                    run.browser.logs()
                print(f"{check.__name__} | {'; '.join(run.notes)} | {result}", flush=True)
        finally:
            if run:
                for browser in (run.browser, *run.others):
                    browser.quit()
            for process in Process.started:
                process.kill()
    print(f"page: checks={len(chosen)} passed={passed} failed={len(chosen) - passed}")
    return passed == len(chosen)


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
