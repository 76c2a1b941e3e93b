"""Shows the live page in a real Chromium and compares it with what `segue` reports; prints a table.

`make page`, or `make page ARGS="--only keyboard"` for the checks whose name has this in it. `--pictures FOLDER` keeps
pictures of the page at rest and in the midst of a cutover.
"""

import argparse
import os
import sys

sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import actions  # noqa: E402
import shown  # noqa: E402
from browser import Browser  # noqa: E402
from clusters import Demo, Operated, until  # noqa: E402
from harness.checks import chosen, run_checks  # noqa: E402
from harness.processes import folder_of_processes  # noqa: E402


class Run:
    """The state that the checks share: the program, a folder, the browser, and each cluster from its first use on."""

    def __init__(self, segue, folder, pictures):
        self.segue, self.folder, self.pictures = segue, folder, pictures
        self.browser = Browser(folder)
        self.others = []
        self.notes = []
        self.clusters = {}

    def play(self, check):
        try:
            check(self)
        finally:
            # What its console shows belongs to this check.
            console = self.browser.logs()
        assert not console, f"the console shows {console}"

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
            until(lambda: any(row[0] not in ("–", "0") for row in browser.read()["rates"]), "the rates of pods")
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
            actions.show_partition(browser, 3)
            run.picture(f"actions-{where}")
            browser.click("#move")
            run.picture(f"dialog-{where}", False)
            actions.confirm(browser, "wrong", "a busy day")
            run.picture(f"refused-{where}", False)
            browser.logs()


CHECKS = [
    shown.the_page_equals_status_through_moves,
    shown.pods_show_what_goes_through_the_routers,
    shown.keys_alone_reach_everything,
    shown.the_page_fits_its_window,
    shown.the_page_reconnects_after_a_restart,
    shown.a_stuck_handoff_names_its_router,
    shown.a_stream_that_ends_is_continued_unnoticed,
    shown.sixty_five_thousand_partitions_stay_fluid,
    actions.without_the_right_to_write_there_is_no_action,
    actions.the_details_explain_a_partition,
    actions.an_action_moves_a_partition,
    actions.a_refused_action_shows_the_reason,
    actions.an_answer_stays_with_its_action,
    actions.an_action_needs_no_mouse_and_shows_text_as_text,
    actions.a_handoff_is_cancelled,
    actions.a_failed_move_is_shown_to_rest,
    actions.a_client_certificate_admits_to_actions,
    shown.the_keyspace_is_chosen_by_keyboard_and_kept_in_the_url,
    shown.a_store_that_refuses_writes_is_the_headline,
    shown.a_lost_store_makes_the_page_old,
    # Last, because it examines the requests of all other checks.
    shown.nothing_is_loaded_from_elsewhere,
]


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--segue", required=True, help="the binary")
    arguments.add_argument("--only", default="", help="run the checks whose name has this in it")
    arguments.add_argument("--short", action="store_true", help="leave out the check that lasts as long as a stream")
    arguments.add_argument("--pictures", help="keep pictures in this folder")
    arguments = arguments.parse_args()
    checks = chosen([pictures] if arguments.pictures and not arguments.only else CHECKS, arguments.only)
    if arguments.short:
        checks = [check for check in checks if check is not shown.a_stream_that_ends_is_continued_unnoticed]
    with folder_of_processes("page") as folder:
        run = Run(arguments.segue, folder, arguments.pictures)
        try:
            failed = run_checks(checks, run)
        finally:
            for browser in (run.browser, *run.others):
                browser.quit()
    print(f"page: checks={len(checks)} passed={len(checks) - failed} failed={failed}")
    return failed == 0


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
