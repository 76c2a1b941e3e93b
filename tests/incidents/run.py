"""Plays incidents on a site under load, and checks that what an operator looks at names the culprit, and when.

`make incidents`, or `make incidents ARGS="--only store"` for those whose name has this in it. First the site is healthy for two
minutes: whatever is said to be wrong then is false.
"""

import argparse
import concurrent.futures
import os
import re
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path += [os.path.dirname(HERE), os.path.join(os.path.dirname(HERE), "page")]

from browser import Browser  # noqa: E402
from harness.processes import folder_of_processes  # noqa: E402
from harness.segue import at  # noqa: E402
from harness.waiting import PATIENCE, until  # noqa: E402
from incidents import INCIDENTS  # noqa: E402
from site_of_incidents import LogReader, Site  # noqa: E402

# Seconds.
LIMIT, ALERT_LIMIT, QUIET = 5, 20, 120
INTERVAL = 0.2


class Operator:
    """Looks at every surface."""

    def __init__(self, site, browser):
        self.site, self.browser, self.log = site, browser, LogReader(site)

    def sees(self, surface):
        """Returns what a surface shows now, as text."""
        match surface.split():
            case ["status"]:
                return self.site.says("status")
            case ["explain", *subject]:
                return self.site.says("explain", *subject)
            case ["top"]:
                return "".join(self.site.says("top", by, "--once") for by in ("--pods", "--keys"))
            case ["check"]:
                return self.site.check()
            case ["page"]:
                page = self.browser.read()
                return "\n".join([page["verdict"], *page["notices"], *(" ".join(cells) for cells in page["handoffs"])])
            case ["log"]:
                return "\n".join(self.log.lines())
            case ["ready"]:
                return self.site.ready()
            case ["metric"]:
                return self.site.metrics()
            case ["alert" | "pending" as state]:
                return "\n".join(self.alerts({"alert": {"firing"}, "pending": {"pending", "firing"}}[state]))
        raise ValueError(surface)

    def alerts(self, states):
        active = self.site.prometheus.active()
        return [" ".join([labels["alertname"], *(f"{key}={labels[key]}" for key in sorted(labels))])
                for labels, state in active if state in states]

    def complaints(self):
        """Returns whatever a surface says to be wrong."""
        status = self.site.says("status")
        found = [f"status: {line}" for line in status.splitlines() if re.match(r"(trouble|notice|paused|handoff +\d)", line)]
        page = self.browser.read()
        # How far the promise reaches is always there.
        notices = [notice for notice in page["notices"] if not notice.startswith("all pods have")]
        if page["tone"] != "settled" or notices:
            found.append(f"page: {page['verdict']} {notices}")
        found += [f"log: {line}" for line in self.log.lines()]
        found += [f"alert: {alert}" for alert in self.alerts({"firing"})]
        troubles = re.findall(r"^segue_pod_trouble\{.*\} [^0].*$", self.site.metrics(), re.M)
        return found + [f"metric: {line}" for line in troubles]


def begin_quietly(operator):
    """Waits until nothing is wrong: a site that has just started says so."""
    deadline = time.monotonic() + PATIENCE
    while complaints := operator.complaints():
        assert time.monotonic() < deadline, f"the site does not get quiet: {complaints}"
        operator.log.skip()
        time.sleep(INTERVAL)


def is_quiet(operator, seconds):
    """Looks for so long. Returns how much was said to be wrong, each once."""
    seen, end = set(), time.monotonic() + seconds
    operator.log.skip()
    while time.monotonic() < end:
        for complaint in operator.complaints():
            if complaint not in seen:
                print(f"    FALSE {complaint}", flush=True)
                seen.add(complaint)
        time.sleep(1)
    return len(seen)


def play(operator, incident):
    """Plays an incident. Returns whether each surface named it in time."""
    operator.log.skip()
    named, shown = {}, {}
    with incident(operator.site) as expected:
        began = time.monotonic()
        limits = {one: ALERT_LIMIT if one in ("alert", "pending") else LIMIT for one in expected}
        limits |= {one: pattern[1] for one, pattern in expected.items() if isinstance(pattern, tuple)}
        expected = {one: pattern[0] if isinstance(pattern, tuple) else pattern for one, pattern in expected.items()}

        def look(surface):
            # For longer than allowed, to tell late from never. A look counts from its question on.
            while (asked := time.monotonic() - began) < 2 * limits[surface] + 5:
                shown[surface] = operator.sees(surface)
                if re.search(expected[surface], shown[surface]):
                    named[surface] = asked
                    return
                time.sleep(INTERVAL)

        with concurrent.futures.ThreadPoolExecutor(len(expected)) as looks:
            list(looks.map(look, expected))
    late = [one for one in expected if named.get(one, 1e9) > limits[one]]
    times = ", ".join(f"{one} {named[one]:.1f} s" if one in named else f"{one} NEVER" for one in expected)
    print(f"{incident.__name__} | {times} | {'FAILED: ' + ', '.join(late) if late else 'named'}", flush=True)
    for surface in late:
        lines = [line for line in shown[surface].splitlines() if not line.startswith("#")]
        print(f"    {surface} shows, for {expected[surface]!r}:\n" + "".join(f"      {line}\n" for line in lines[:25]), flush=True)
    return not late


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--segue", required=True, help="the binary")
    arguments.add_argument("--only", default="", help="play the incidents whose name has this in it, or one of these with commas between")
    arguments.add_argument("--quiet", type=int, default=QUIET, help="for how many seconds the healthy site is looked at")
    arguments = arguments.parse_args()
    chosen = [incident for incident in INCIDENTS if any(part in incident.__name__ for part in arguments.only.split(","))]
    assert chosen, f"no incident has {arguments.only!r} in its name"
    with folder_of_processes("incidents", shows_tails=lambda failed: failed) as folder:
        site = Site(arguments.segue, folder)
        browser = Browser(folder)
        try:
            browser.open(f"http://{at(site.admins['coordinator-0'])}")
            operator = Operator(site, browser)
            begin_quietly(operator)
            false = is_quiet(operator, arguments.quiet)
            print(f"a healthy site for {arguments.quiet} s | {false} complaints", flush=True)
            named = 0
            for incident in chosen:
                named += play(operator, incident)
                until(site.is_settled, "a settled site after it", 120)
        finally:
            browser.quit()
    print(f"incidents: played={len(chosen)} named={named} false={false}")
    return named == len(chosen) and false == 0


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
