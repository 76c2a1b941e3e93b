"""Debian's Prometheus, with the alerts that deploy/ ships and processes to scrape."""

import datetime
import os
import re
import time
import urllib.parse

import yaml

from .ports import free_port
from .processes import Process
from .waiting import until
from .web import is_up, read_json

def seconds(moment):
    """Returns the Unix time of Prometheus' RFC 3339, which has as many digits as it needs."""
    date, fraction, zone = re.fullmatch(r"([^.]*?)(\.\d+)?(Z|[+-]\d\d:\d\d)", moment).groups()
    return datetime.datetime.fromisoformat(date + zone.replace("Z", "+00:00")).timestamp() + float(fraction or 0)


def rules_of(path, at_once=False, thresholds=None):
    """Returns the groups of alerts in a file. `at_once`: none need last before it fires. `thresholds`: by the alert, as written and
    as used instead."""
    with open(path, encoding="utf-8") as file:
        groups = yaml.safe_load(file)
    for rule in (rule for group in groups["groups"] for rule in group["rules"]):
        if at_once:
            rule.pop("for", None)
            rule.pop("keep_firing_for", None)
        if written := (thresholds or {}).get(rule.get("alert")):
            assert written[0] in rule["expr"], rule
            rule["expr"] = rule["expr"].replace(*written)
    return groups


class Prometheus:
    def __init__(self, folder, groups, targets, keyspace, now_and_then=()):
        """`targets`: for each keyspace the ports by the name of the process. `keyspace`: the one that is asked about.
        `now_and_then`: its processes that need not run."""
        self.keyspace, self.processes = keyspace, len(set(targets[keyspace]) - set(now_and_then))
        config, rules = os.path.join(folder, "prometheus.yml"), os.path.join(folder, "rules.yml")
        with open(rules, "w", encoding="utf-8") as out:
            yaml.safe_dump(groups, out)
        static = [{"targets": [f"127.0.0.1:{port}"], "labels": {"keyspace": of, "instance": name}}
                  for of, ports in targets.items() for name, port in ports.items()]
        with open(config, "w", encoding="utf-8") as out:
            yaml.safe_dump({
                "global": {"scrape_interval": "1s", "evaluation_interval": "1s"}, "rule_files": [rules],
                "scrape_configs": [{"job_name": "segue", "static_configs": static}],
            }, out)
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.began = time.time()
        self.process = Process("prometheus", folder, [
            "prometheus", f"--config.file={config}", f"--storage.tsdb.path={os.path.join(folder, 'tsdb')}",
            f"--web.listen-address=127.0.0.1:{port}",
        ])
        until(lambda: is_up(f"{self.url}/-/ready"), "Prometheus")

    def api(self, path, **parameters):
        return read_json(f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}")["data"]

    def catch_up(self):
        """Waits until it has scraped every process of the site and then evaluated the alerts.

        A counter shows growth only against an earlier sample. Processes get their first scrapes seconds after the start, in any
        order, and one that was started again needs one, too.
        """
        began = time.time()
        query = f"count((timestamp(up{{keyspace='{self.keyspace}'}}) >= {began}) and up == 1)"
        until(lambda: [one["value"][1] for one in self.api("query", query=query)["result"]] == [str(self.processes)],
              "a scrape of every process")
        scraped = time.time()
        until(lambda: all(seconds(group["lastEvaluation"]) >= scraped for group in self.api("rules")["groups"]),
              "an evaluation of the alerts")

    def shown(self, expression):
        """Returns what the metrics of an expression were in the last minutes, in lines for a reader."""
        for name in sorted(set(re.findall(r"\b(?:segue|process)_\w+", expression))):
            result = self.api("query", query=f'{name}{{keyspace="{self.keyspace}"}}[10m]')["result"]
            told = [one for one in result if any(value != "0" for _, value in one["values"])]
            yield f"{name}: {len(result)} series, {len(result) - len(told)} of them always 0"
            for one in told[:20]:
                (first, earlier), (last, later) = one["values"][0], one["values"][-1]
                labels = {key: value for key, value in one["metric"].items() if key not in ("__name__", "job", "keyspace")}
                yield f"    {labels}: {earlier} at {first:.1f} to {later} at {last:.1f}, {len(one['values'])} samples"

    def firing(self):
        """Returns the names of the alerts that fire."""
        return {labels["alertname"] for labels in self.firing_labels()}

    def firing_labels(self):
        """Returns the labels of the alerts that fire."""
        return [labels for labels, state in self.active() if state == "firing"]

    def active(self):
        """Returns the labels of the alerts that fire or that only have to last, and which of both."""
        alerts = [(alert["labels"], alert["state"]) for alert in self.api("alerts")["alerts"]]
        return [(labels, state) for labels, state in alerts if labels["keyspace"] == self.keyspace]

    def told(self, inhibit_rules):
        """Returns the names of the alerts of which Alertmanager would tell."""
        def matches(matchers, labels):
            for matcher in matchers:
                label, operator, value = re.fullmatch(r'(\w+)(=~|=)"(.*)"', matcher.strip()).groups()
                found = labels.get(label, "")
                if not (re.fullmatch(value, found) if operator == "=~" else found == value):
                    return False
            return True

        firing = self.firing_labels()

        def is_inhibited(labels):
            return any(matches(rule["target_matchers"], labels) and matches(rule["source_matchers"], source)
                       and all(labels.get(label) == source.get(label) for label in rule["equal"])
                       for rule in inhibit_rules for source in firing if source is not labels)

        return {labels["alertname"] for labels in firing if not is_inhibited(labels)}

    def numbers(self, expression):
        """Returns how many numbers the expression had since the start, NaN left out."""
        now = time.time()
        series = self.api("query_range", query=expression, start=self.began, end=now, step=1)["result"]
        return sum(value != "NaN" for one in series for _, value in one["values"])
