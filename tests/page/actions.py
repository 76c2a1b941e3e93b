"""Checks of what the page explains, and of the actions that it offers."""

import signal

from clusters import Certified, Operated, until


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
    page = until(lambda: (page := browser.read())["tone"] == "warn" and page, "an amber headline")
    assert "paused" in page["verdict"], page["verdict"]
    browser.press("ENTER")
    page = browser.read()
    assert markup in page["dialog"] and page["images"] == 0 and page["overflow"] <= 0, page
    browser.press("TAB", "TAB", "TAB", "ENTER")
    until(lambda: browser.read()["answer"].startswith("Done: planned moves go on"), "the end of the pause")
    browser.press("ENTER")
    until(lambda: not cluster.admin.keyspace()["paused"], "no pause")
    until(lambda: browser.read()["tone"] == "settled", "a headline without the pause")


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
        last = until(lambda: cluster.admin.get("/v1/history?partition=9&limit=1")["handoffs"][0], "its end")
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
