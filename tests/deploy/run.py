"""Tests what deploy/ offers: the manifests, the compose file, the dashboard and the alerts. Prints a line for each check.

`make deploy-check`, or `make deploy-check ARGS="--only manifests"` for the checks whose name has this in it.
"""

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import time
import traceback

import yaml

sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import compose  # noqa: E402
import faults  # noqa: E402
import manifests  # noqa: E402
from harness.checks import Reported, chosen, run_checks  # noqa: E402
from harness.ports import free_port  # noqa: E402
from harness.processes import Process, folder_of_processes, tails  # noqa: E402
from harness.prometheus import Prometheus, rules_of  # noqa: E402
from harness.segue import ANYWHERE, Demo, Segue, at  # noqa: E402
from harness.waiting import until  # noqa: E402
from harness.web import read, read_json, status_of  # noqa: E402
from site_processes import Site  # noqa: E402

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
ALERTS = os.path.join(ROOT, "deploy/prometheus/alerts.yaml")
INHIBITIONS = os.path.join(ROOT, "deploy/prometheus/inhibit-rules.yaml")
DASHBOARD = os.path.join(ROOT, "deploy/grafana/segue.json")


class Run:
    """The state that the checks share. The site is started by the first check that needs it."""

    def __init__(self, segue, folder):
        self.segue, self.folder, self.notes = segue, folder, []
        self.expressions = self.alerts = self.manifests = 0
        self.site = self.prometheus = self.demo = None
        # The alerts that did not fire at some time.
        self.silent = set()

    def play(self, check):
        check(self)

    def start(self):
        if self.site is None:
            self.site = Site(self.segue, self.folder)
            self.demo = Demo(self.segue, self.folder, "--duration", "900s", "--partitions", "16", "--clients", "4", "--rate", "40")
            # The demo has faults of its own.
            targets = {"site": self.site.ports | {"stranger": self.site.stranger_port}, "demo": {"demo": self.demo.port}}
            rules = rules_of(ALERTS, at_once=True, thresholds=faults.SHORTER)
            self.prometheus = Prometheus(self.folder, rules, targets, "site", now_and_then=["stranger"])
        return self.site


def rules():
    with open(ALERTS, encoding="utf-8") as file:
        return [rule for group in yaml.safe_load(file)["groups"] for rule in group["rules"]]


def inhibit_rules():
    with open(INHIBITIONS, encoding="utf-8") as file:
        return yaml.safe_load(file)["inhibit_rules"]


def dashboard():
    with open(DASHBOARD, encoding="utf-8") as file:
        return json.load(file)


def promtool(*arguments, **options):
    output = subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False, **options)
    assert output.returncode == 0 and not output.stderr.strip(), output.stdout + output.stderr


def the_alerts_are_sound_and_each_has_its_runbook(_run):
    promtool("check", "rules", ALERTS)
    promtool("test", "rules", os.path.join(ROOT, "tests/deploy/rules.test.yaml"))
    with open(os.path.join(ROOT, "docs/operating.md"), encoding="utf-8") as file:
        runbook = re.findall(r"^### (Segue\w+)$", file.read(), re.M)
    names = [rule["alert"] for rule in rules()]
    for rule in inhibit_rules():
        matchers = [re.fullmatch(r'alertname=~?"([\w|]+)"', matcher.strip())[1]
                    for matcher in rule["source_matchers"] + rule["target_matchers"]]
        unknown = {name for matcher in matchers for name in matcher.split("|")} - set(names)
        assert not unknown and rule["equal"] == ["keyspace"], unknown
    assert names == runbook, set(names) ^ set(runbook) or "another order"
    for rule in rules():
        assert rule["annotations"]["runbook_url"].endswith(f"docs/operating.md#{rule['alert'].lower()}"), rule
    tested = faults.BY_RULE_TEST.union(*(alerts for _, alerts in faults.FAULTS))
    assert tested == set(names), tested ^ set(names)


def the_dashboard_fits_its_grid(_run):
    places, ids = set(), set()
    for panel in dashboard()["panels"]:
        grid = panel["gridPos"]
        cells = {(x, y) for x in range(grid["x"], grid["x"] + grid["w"]) for y in range(grid["y"], grid["y"] + grid["h"])}
        assert grid["x"] + grid["w"] <= 24 and not cells & places and panel["id"] not in ids, panel["title"]
        assert panel["type"] == "row" or panel["targets"], panel["title"]
        places |= cells
        ids.add(panel["id"])


def keyspaces_in_one_process(run):
    """Starts all roles in two keyspaces, whose series differ by a label, and returns the port of their admin endpoint."""
    admin = free_port()
    Segue(run.segue, run.folder, None).run("keyspaces", {
        "store": {"kind": "memory"}, "coordinator": {"listen": ANYWHERE}, "router": {"listen": at(free_port())},
        "pod": {"listen": at(free_port()), "upstream": at(free_port())}, "admin": {"listen": at(admin)},
        "keyspaces": [{"name": name, "match": {"path_prefix": f"/{name}"}, "partitions": 4, "partition": {"header": "x-partition"}}
                      for name in ("persons", "orders")],
    })
    return admin


def every_role_serves_clean_metrics(run):
    ports = {**run.start().ports, "demo": run.demo.port, "keyspaces": keyspaces_in_one_process(run)}
    for name, port in ports.items():
        metrics = until(lambda: read(f"http://127.0.0.1:{port}/metrics"), f"metrics of {name}")  # noqa: B023
        promtool("check", "metrics", input=metrics)
    run.notes.append(", ".join(ports))


def fires(run, fault, alerts):
    """Makes the fault and waits for its alerts. Returns those that fired before it, which a busy machine can bring about."""
    site, prometheus = run.site, run.prometheus
    if fault is faults.nothing_at_all:
        until(lambda: alerts <= prometheus.firing(), f"{alerts}")
        return set()
    site.settle()
    prometheus.catch_up()
    firing = prometheus.firing()
    run.silent |= {rule["alert"] for rule in rules()} - firing
    with contextlib.suppress(AssertionError):
        until(lambda: not alerts & prometheus.firing(), "their end", 20 if alerts & firing else 0)
    early, fired = alerts & prometheus.firing(), set()
    assert alerts <= run.silent, f"{alerts - run.silent} fired from the start"

    def all_fired():
        fired.update(prometheus.firing())
        return alerts <= fired

    with fault(site):
        try:
            until(all_fired, f"{alerts} by {fault.__name__}")
            if alone := faults.TOLD_ALONE.get(fault):
                # What fired before may go on.
                until(lambda: alone <= prometheus.told(inhibit_rules()) <= alone | firing, f"{alone} alone")
        except AssertionError as error:
            shown = [line for rule in rules() if rule["alert"] in alerts - fired
                     for line in (f"{rule['alert']}: {rule['expr']}", *prometheus.shown(rule["expr"]))]
            raise AssertionError("\n".join([f"{error}; fired: {fired}", *shown])) from None
    return early


def each_alert_fires_for_a_real_fault(run):
    run.start()
    failed = []
    for fault, alerts in faults.FAULTS:
        began = time.monotonic()
        try:
            early = fires(run, fault, alerts)
            run.alerts += len(alerts)
            result = "".join(f", {alert} fired already" for alert in sorted(early))
        except Exception:  # noqa: BLE001: the faults after it are made nevertheless
            failed.append(fault.__name__)
            result = f", FAILED\n{traceback.format_exc()}{tails()}"
        print(f"    {fault.__name__}: {', '.join(sorted(alerts))} ({time.monotonic() - began:.1f}s){result}", flush=True)
    if failed:
        raise Reported(", ".join(failed))
    run.site.settle()
    run.alerts += len(faults.BY_RULE_TEST)
    run.notes.append(f"by rule tests only: {', '.join(sorted(faults.BY_RULE_TEST))}")


def expressions():
    """Returns every query of the dashboard with its variables filled in, and every expression of the alerts."""
    board = dashboard()
    queries = [target["expr"] for panel in board["panels"] for target in panel.get("targets", [])]
    queries += [annotation["expr"] for annotation in board["annotations"]["list"]]
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            queries.append(re.fullmatch(r"label_values\((.*), \w+\)", variable["query"]["query"])[1])
    queries = [query.replace("$__rate_interval", "10s").replace("$instance", ".*") for query in queries]
    # A threshold that was shortened has not been reached as it is written.
    unreached = faults.BY_RULE_TEST.union(faults.SHORTER)
    alerts = [rule["expr"] for rule in rules() if rule["alert"] not in unreached]
    return queries + alerts


def every_expression_has_numbers(run):
    run.start()
    queries = expressions()
    empty = [query for query in queries if not run.prometheus.numbers(query)]
    assert not empty, "no numbers for:\n" + "\n".join(empty)
    run.expressions = len(queries)


def the_manifests_fit_kubernetes(run):
    foreign = set()
    for name, documents in manifests.rendered().items():
        for document in documents:
            kind = document["kind"]
            if kind == "PrometheusRule":
                promtool("check", "rules", "/dev/stdin", input=yaml.safe_dump(document["spec"]))
            if kind in manifests.FOREIGN:
                foreign.add(kind)
                continue
            problems = manifests.fits_schemas(document)
            assert not problems, f"{name}: {kind} {document['metadata']['name']}: {problems}"
            run.manifests += 1
        manifests.check_relations(name, documents)
        for workload in manifests.workloads(documents):
            manifests.check_security(name, workload)
    run.notes.append(f"schemas of Kubernetes {' and '.join(manifests.VERSIONS)}; without a schema: {', '.join(sorted(foreign))}")


def the_manifests_hold_configurations_that_segue_accepts(run):
    for name, documents in manifests.rendered().items():
        if manifests.workloads(documents):
            manifests.check_configurations(run.segue, run.folder, name, documents)
            manifests.check_life(run.segue, run.folder, name, documents)


def the_chart_with_the_manifests_is_whole_and_refuses_wrong_values(run):
    manifests.check_chart(run.folder)
    manifests.check_sidecar(run.folder)


def the_etcd_of_the_chart_elects_a_leader(run):
    ports = [[free_port() for _ in range(3)] for _ in range(3)]
    members = [Process(f"etcd-{number}", run.folder, command)
               for number, command in enumerate(manifests.etcd_commands(run.folder, ports))]
    ready, alive = manifests.etcd_probes()

    def answers(port):
        return [status_of(f"http://127.0.0.1:{port}{path}") for path in (ready, alive)]

    def probes(expected, what):
        for _, _, metrics in ports:
            until(lambda: answers(metrics) == expected, f"{what}: {expected} of the two probes")  # noqa: B023

    def alarm(action, kind, member):
        read(f"http://127.0.0.1:{ports[0][0]}/v3/maintenance/alarm",
             {"action": action, "alarm": kind, "memberID": member})

    probes([200, 200], "a leader")
    member = read_json(f"http://127.0.0.1:{ports[0][0]}/v3/maintenance/status", {"": 0})["header"]["member_id"]
    for kind in ("NOSPACE", "CORRUPT"):
        # One alarm is every member's. No member accepts writes then, and none gets well by a restart.
        alarm("ACTIVATE", kind, member)
        probes([503, 200], kind)
        alarm("DEACTIVATE", kind, member)
        probes([200, 200], f"no {kind}")
    for member in members:
        member.kill()


def a_composed_site_moves_partitions_under_load(run):
    missing = compose.missing()
    assert not missing, f"{missing}; --short leaves the containers out"
    run.notes.append(f"{compose.moves_under_load(run.segue, run.folder)} requests, each answered by a service")


CHECKS = [
    the_manifests_fit_kubernetes,
    the_manifests_hold_configurations_that_segue_accepts,
    the_chart_with_the_manifests_is_whole_and_refuses_wrong_values,
    the_etcd_of_the_chart_elects_a_leader,
    a_composed_site_moves_partitions_under_load,
    the_alerts_are_sound_and_each_has_its_runbook,
    the_dashboard_fits_its_grid,
    every_role_serves_clean_metrics,
    each_alert_fires_for_a_real_fault,
    # After the faults, because some series exist only while something is wrong.
    every_expression_has_numbers,
]


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--segue", required=True, help="the binary")
    arguments.add_argument("--only", default="", help="run the checks whose name has this in it")
    arguments.add_argument("--short", action="store_true", help="leave out the containers")
    arguments = arguments.parse_args()
    checks = chosen(CHECKS, arguments.only)
    if arguments.short:
        checks = [check for check in checks if check is not a_composed_site_moves_partitions_under_load]
    with folder_of_processes("deploy") as folder:
        run = Run(arguments.segue, folder)
        try:
            failed = run_checks(checks, run)
        finally:
            if run.site:
                run.site.end()
    print(f"deploy-check: expressions={run.expressions} alerts={run.alerts} manifests={run.manifests} failed={failed}")
    return failed == 0


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
