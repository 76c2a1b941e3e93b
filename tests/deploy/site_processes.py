"""A small site of real processes, each with an admin endpoint, faults for it, and the Prometheus that scrapes it."""

import datetime
import http.client
import http.server
import json
import os
import re
import signal
import threading
import time
import urllib.parse

import yaml

from harness.certificates import self_signed
from harness.etcd import Etcd
from harness.ports import free_port
from harness.processes import Process
from harness.segue import ANYWHERE, QUICK, Segue, at
from harness.waiting import until
from harness.web import is_up, read_json

PARTITIONS = 8


def seconds(moment):
    """Returns the Unix time of Prometheus' RFC 3339, which has as many digits as it needs."""
    date, fraction, zone = re.fullmatch(r"([^.]*?)(\.\d+)?(Z|[+-]\d\d:\d\d)", moment).groups()
    return datetime.datetime.fromisoformat(date + zone.replace("Z", "+00:00")).timestamp() + float(fraction or 0)


class Service:
    """A writer behind a sidecar: `/slow` takes 20 s, and the hook `warm` can be made to fail for good or to go on for ever."""

    def __init__(self):
        self.port, self.refuses, self.warms_for_ever = free_port(), False, False
        service = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                self.rfile.read(int(self.headers.get("content-length", 0)))
                if self.path == "/slow":
                    time.sleep(20)
                refused = service.refuses and self.path == "/warm"
                warming = service.warms_for_ever and self.path == "/warm"
                body = b'{"permanent":true,"reason":"told to"}' if refused else b'{"progress":0.1}' if warming else b"{}"
                self.send_response(409 if refused else 202 if warming else 200)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        class Server(http.server.ThreadingHTTPServer):
            def handle_error(self, *_):
                """Peers that are gone are part of the test."""

        server = Server(("127.0.0.1", self.port), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()


class Site(Segue):
    """etcd, a coordinator, two routers of which one serves TLS, and two sidecars, under a light load."""

    def __init__(self, segue, folder):
        super().__init__(segue, folder, Etcd(folder), "site")
        self.ports, self.configs, self.processes, self.services, self.pods = {}, {}, {}, {}, {}
        self.router, self.stranger_port = free_port(), free_port()
        self.loading = threading.Event()
        self.loading.set()
        self.add("coordinator", {"coordinator": {
            "partitions": PARTITIONS, "lease_ttl": "3s", "settle_max": "1s", "phase_timeout": "3s", "listen": ANYWHERE,
        } | QUICK})
        cert, key = self_signed(folder, days=5)
        tls = {"tls": {"cert": cert, "key": key}, "hot_restart_socket": os.path.join(folder, "hot-restart.sock")}
        # The second lease is long, so that a router that is stopped is waited for.
        for name, listen, lease, more in (("router", self.router, "6s", {}), ("router-tls", free_port(), "60s", tls)):
            self.add(name, {"router": {
                "name": name, "listen": at(listen), "lease_ttl": lease, "workers": 1, "partition": {"header": "x-partition"},
                "stash": {"max_wait": "4s"}, "drain": {"timeout": "2s", "on_timeout": "sever"},
            } | more})
        for name in ("a", "b"):
            upstream, self.pods[name] = self.service(name), at(free_port())
            self.add(name, {"pod": {
                "name": name, "listen": self.pods[name], "upstream": upstream, "lease_ttl": "5s",
                "hooks": {hook: {"url": f"http://{upstream}/{hook}"} for hook in ("warm", "sync")},
            }})
        self.settle()
        for partition in range(PARTITIONS):
            threading.Thread(target=self.load, args=(partition,), daemon=True).start()

    def service(self, name):
        self.services[name] = Service()
        return at(self.services[name].port)

    def add(self, name, sections):
        self.ports[name] = free_port()
        self.configs[name] = self.configure(name, sections | {"admin": {"listen": at(self.ports[name])}})
        self.begin(name)

    def begin(self, name):
        self.processes[name] = self.start(name, self.configs[name])

    def stranger(self):
        """Starts a coordinator of another keyspace."""
        return self.run("stranger", {"keyspace": "other", "coordinator": {"name": "stranger"},
                                     "admin": {"listen": at(self.stranger_port)}})

    def pid(self, name):
        return self.processes[name].process.pid

    def settle(self):
        def settled():
            status = self.status()
            return (status.get("leader") and len(status["pods"]) == 2 and len(status["routers"]) == 2
                    and not status["handoffs"] and not status["unowned"]
                    and all(is_up(f"http://127.0.0.1:{port}/ready") for port in self.ports.values()) and status)
        return until(settled, "a settled site")

    def move(self, partition, pod, refusal=None):
        """Asks for a move and does not wait for it. `refusal`: what the pod may have answered by then."""
        asked = self.operate("move", str(partition), "--to", pod, "--no-wait")
        # 4: the coordinator has not answered within half a minute, and will find the order.
        assert asked.returncode in (0, 4) or (refusal and refusal in asked.stderr), asked.stderr

    def other_owner(self, partition):
        """Returns the pod that does not own the partition."""
        explained = self.operate("explain", str(partition), "--json")
        assert explained.returncode == 0, f"partition {partition} is not explained: {explained.stderr}"
        return "b" if json.loads(explained.stdout)["owner"] == "a" else "a"

    def post(self, partition, path="/", timeout=30):
        connection = http.client.HTTPConnection("127.0.0.1", self.router, timeout=timeout)
        try:
            connection.request("POST", path, b"{}", {"x-partition": str(partition)})
            return connection.getresponse().status
        finally:
            connection.close()

    def load(self, partition):
        while self.loading.is_set():
            try:
                self.post(partition)
            except (OSError, http.client.HTTPException):
                pass
            time.sleep(0.1)

    def signal(self, name, number):
        os.kill(self.pid(name), number)

    def end(self):
        self.loading.clear()
        # A stopped process is not ended by SIGTERM.
        self.signal("router-tls", signal.SIGCONT)


class Prometheus:
    """Debian's Prometheus with the alerts of deploy/, which here need not last before they fire."""

    def __init__(self, folder, rules, targets, shorter, stranger):
        """`targets`: for each keyspace the ports by the name of the process. `shorter`: thresholds by the alert, as written and
        as used here. `stranger`: the port of a process that runs now and then."""
        with open(rules, encoding="utf-8") as file:
            groups = yaml.safe_load(file)
        for group in groups["groups"]:
            for rule in group["rules"]:
                rule.pop("for", None)
                rule.pop("keep_firing_for", None)
                if written := shorter.get(rule.get("alert")):
                    assert written[0] in rule["expr"], rule
                    rule["expr"] = rule["expr"].replace(*written)
        config, rules = os.path.join(folder, "prometheus.yml"), os.path.join(folder, "rules.yml")
        with open(rules, "w", encoding="utf-8") as out:
            yaml.safe_dump(groups, out)
        self.processes = len(targets["site"])
        static = [{"targets": [f"127.0.0.1:{port}"], "labels": {"keyspace": keyspace, "instance": name}}
                  for keyspace, ports in targets.items() for name, port in ports.items()]
        static.append({"targets": [f"127.0.0.1:{stranger}"], "labels": {"keyspace": "site", "instance": "stranger"}})
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
        query = f"count((timestamp(up{{keyspace='site'}}) >= {began}) and up == 1)"
        until(lambda: [one["value"][1] for one in self.api("query", query=query)["result"]] == [str(self.processes)],
              "a scrape of every process")
        scraped = time.time()
        until(lambda: all(seconds(group["lastEvaluation"]) >= scraped for group in self.api("rules")["groups"]),
              "an evaluation of the alerts")

    def shown(self, expression):
        """Returns what the metrics of an expression were in the last minutes, in lines for a reader."""
        for name in sorted(set(re.findall(r"\b(?:segue|process)_\w+", expression))):
            result = self.api("query", query=f'{name}{{keyspace="site"}}[10m]')["result"]
            told = [one for one in result if any(value != "0" for _, value in one["values"])]
            yield f"{name}: {len(result)} series, {len(result) - len(told)} of them always 0"
            for one in told[:20]:
                (first, earlier), (last, later) = one["values"][0], one["values"][-1]
                labels = {key: value for key, value in one["metric"].items() if key not in ("__name__", "job", "keyspace")}
                yield f"    {labels}: {earlier} at {first:.1f} to {later} at {last:.1f}, {len(one['values'])} samples"

    def firing(self):
        """Returns the names of the alerts that fire for the site. The demo has faults of its own."""
        return {labels["alertname"] for labels in self.firing_labels()}

    def firing_labels(self):
        """Returns the labels of the alerts that fire for the site."""
        alerts = [alert["labels"] for alert in self.api("alerts")["alerts"] if alert["state"] == "firing"]
        return [labels for labels in alerts if labels["keyspace"] == "site"]

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
