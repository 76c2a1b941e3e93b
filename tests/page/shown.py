"""Checks of what the page shows, compared with what `segue` reports."""

import random
import re
import signal
import threading
import urllib.request

from actions import confirm, show_partition
from clusters import Cluster, LargeKeyspace, TwoKeyspaces, Operated, until

# CPU time of the page's main thread for each drawing of 65,536 partitions, in milliseconds. Frame times are only reported: on a
# machine that does other work they say nothing of the page.
MOST_PER_DRAWING = 60.0


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


def pods_show_what_goes_through_the_routers(run):
    demo = run.demo()
    run.browser.open(demo.admin.url)
    rated = until(lambda: [row for row in run.browser.read()["rates"] if row[0] not in ("–", "0")], "the rates of pods")
    assert all(re.fullmatch(r"[\d.,]+", row[0]) and row[1] == "0" for row in rated), rated
    assert all(re.fullmatch(r"[\d.]+ m?s|–", row[2]) for row in rated), rated
    top = demo.admin.get("/v1/top")
    assert not [router for router in top["routers"] if router["error"]] and top["requests_per_s"] > 0, top
    run.notes.append(f"{top['requests_per_s']:.0f} requests/s; shown {rated}")


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
    # The console may show only that connections broke or were refused meanwhile: the stream's, and those of what was asked then.
    broken = browser.logs()
    assert broken and all("net::ERR_" in message for message in broken), broken


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


def the_keyspace_is_chosen_by_keyboard_and_kept_in_the_url(run):
    cluster, browser = run.cluster(TwoKeyspaces), run.browser

    def shows(name):
        page, status = browser.read(), cluster.admin.keyspace(name)
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
    until(lambda: cluster.admin.keyspace("orders")["paused"], "the pause")
    assert not cluster.admin.keyspace("persons")["paused"], cluster.admin.keyspace("persons")
    browser.click("#action-close")
    browser.driver.back()
    until(lambda: shows("persons"), "the first keyspace again")
    run.notes.append(browser.driver.current_url.split("/", 3)[3] or "/")


def a_store_that_refuses_writes_is_the_headline(run):
    cluster, browser = run.cluster(Operated), run.browser
    browser.open(cluster.admin.url)
    run.equals_status(cluster.admin)
    cluster.etcd.alarm("ACTIVATE", "NOSPACE")
    shown = "The store refuses writes, and no move begins: "
    page = until(lambda: (page := browser.read())["verdict"].startswith(shown) and page, "the refusal")
    assert page["tone"] == "bad" and "space exceeded" in page["verdict"], page
    run.notes.append(page["verdict"][:120])
    cluster.etcd.alarm("DEACTIVATE", "NOSPACE")
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
    with urllib.request.urlopen(demo.admin.url, timeout=30) as response:
        policy = response.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy, policy
    run.browser.logs()
    requests = run.browser.requests
    origins = tuple(cluster.admin.url for cluster in run.clusters.values())
    elsewhere = [url for url in requests if not url.startswith(origins) and not url.startswith(("data:", "chrome:"))]
    assert len(requests) >= 5 and not elsewhere, (requests, elsewhere)
    run.notes.append(f"{len(requests)} requests, all to the process itself")
