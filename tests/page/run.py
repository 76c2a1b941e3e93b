"""Shows the live page in a real Chromium and compares it with what `segue` reports; prints a table.

`make page`, or `make page ARGS="--only keyboard"` for the checks whose name has this in it. `--pictures FOLDER` keeps
pictures of the page at rest and in the midst of a cutover.
"""

import argparse
import os
import random
import signal
import sys
import tempfile
import threading
import time
import traceback

from browser import Browser
from clusters import Cluster, Demo, LargeKeyspace, Process, until

# Generous, because CI draws without a graphics card while other jobs run.
LONGEST_FRAME_P95 = 150.0


class Run:
    """The state that the checks share: the program, a folder, the browser, and each cluster from its first use on."""

    def __init__(self, segue, folder, pictures):
        self.segue, self.folder, self.pictures = segue, folder, pictures
        self.browser = Browser(folder)
        self.notes = []
        self.clusters = {}

    def cluster(self, kind, *arguments):
        if kind not in self.clusters:
            folder = os.path.join(self.folder, kind.__name__)
            os.makedirs(folder)
            self.clusters[kind] = kind(self.segue, folder, *arguments)
        return self.clusters[kind]

    def demo(self):
        return self.cluster(Demo, "--partitions", "96", "--duration", "600s", "--rate", "300", "--clients", "16")

    def picture(self, name):
        if self.pictures:
            os.makedirs(self.pictures, exist_ok=True)
            self.browser.screenshot(os.path.join(self.pictures, f"{name}.png"))

    def equals_status(self, admin, patience=30):
        """Waits until page and /status show the same revision, compares them, and returns what both show."""
        def same_revision():
            keyspace, page = admin.keyspace(), self.browser.read()
            return (keyspace, page) if keyspace and page["revision"] == str(keyspace["revision"]) else None

        keyspace, page = until(same_revision, "the page at the revision of /status", patience)
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
            assert page["overflow"] <= 0, f"{page['overflow']} px too wide at {width} px"


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
    assert p95 <= LONGEST_FRAME_P95, run.notes[-1]
    run.equals_status(large.admin)
    for partition in random.Random(8).sample(sorted(moved), 5):
        go = run.browser.find("#go")
        go.clear()
        go.send_keys(str(partition))
        run.browser.press("ENTER")
        owner = large.owners[partition]
        until(lambda: f"Partition {partition}\n" in (text := run.browser.read()["detail"] or "") and f"\n{owner}\n" in text,
              f"{owner} as the owner of partition {partition}", 10)
    run.picture("large")


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


CHECKS = [
    the_page_equals_status_through_moves,
    keys_alone_reach_everything,
    the_page_fits_its_window,
    the_page_reconnects_after_a_restart,
    a_stuck_handoff_names_its_router,
    a_stream_that_ends_is_continued_unnoticed,
    sixty_five_thousand_partitions_stay_fluid,
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
                    result = f"FAILED\n{traceback.format_exc()}"
                print(f"{check.__name__} | {'; '.join(run.notes)} | {result}", flush=True)
            if passed < len(chosen):
                for process in Process.started:
                    print(f"--- {process.name}\n{process.tail()}")
        finally:
            if run:
                run.browser.quit()
            for process in Process.started:
                process.kill()
    print(f"page: checks={len(chosen)} passed={passed} failed={len(chosen) - passed}")
    return passed == len(chosen)


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
