"""A small site of real processes, each with an admin endpoint, faults for it, and the Prometheus that scrapes it."""

import base64
import datetime
import http.client
import http.server
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request

import yaml

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "interop"))
from processes import Etcd, Process, free_port  # noqa: E402: the same processes as `make foreign` has

PATIENCE = 60.0
PARTITIONS = 8


def until(condition, what, patience=PATIENCE):
    """Waits for the condition. A connection that fails counts as not yet."""
    deadline = time.monotonic() + patience
    while True:
        try:
            found, reason = condition(), ""
        except (OSError, http.client.HTTPException) as error:
            found, reason = None, f": {error!r}"
        if found:
            return found
        assert time.monotonic() < deadline, f"waited in vain for {what}{reason}"
        time.sleep(0.1)


def read(url, data=None):
    request = urllib.request.Request(url, data=data and json.dumps(data).encode())
    with urllib.request.urlopen(request, timeout=10) as response:
        return response.read().decode()


def seconds(moment):
    """Returns the Unix time of Prometheus' RFC 3339, which has as many digits as it needs."""
    date, fraction, zone = re.fullmatch(r"([^.]*?)(\.\d+)?(Z|[+-]\d\d:\d\d)", moment).groups()
    return datetime.datetime.fromisoformat(date + zone.replace("Z", "+00:00")).timestamp() + float(fraction or 0)


def is_up(url):
    try:
        return read(url) is not None
    except OSError:
        return False


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


class Site:
    """etcd, a coordinator, two routers of which one serves TLS, and two sidecars, under a light load."""

    def __init__(self, segue, folder):
        self.segue, self.folder = segue, folder
        self.etcd = Etcd(folder)
        until(self.etcd.is_up, "etcd")
        self.ports, self.configs, self.processes, self.services = {}, {}, {}, {}
        self.router, self.stranger_port = free_port(), free_port()
        self.loading = threading.Event()
        self.loading.set()
        self.tls = self.certificate(days=5)
        self.add("coordinator", f"""
[coordinator]
partitions = {PARTITIONS}
lease_ttl = "3s"
settle = "50ms"
settle_max = "1s"
min_interval = "100ms"
cool_down = "0s"
phase_timeout = "3s"
listen = "127.0.0.1:0"
""")
        for name, listen, more in (("router", self.router, ""), ("router-tls", free_port(), self.tls)):
            # The lease is long, so that a router that is stopped is waited for.
            self.add(name, f"""
[router]
name = "{name}"
listen = "127.0.0.1:{listen}"
lease_ttl = "{'6s' if name == 'router' else '60s'}"
workers = 1
{more}
[router.partition]
header = "x-partition"
[router.stash]
max_wait = "4s"
[router.drain]
timeout = "2s"
on_timeout = "sever"
""")
        for name in ("a", "b"):
            service = self.services[name] = Service()
            self.add(name, f"""
[pod]
name = "{name}"
listen = "127.0.0.1:{free_port()}"
upstream = "127.0.0.1:{service.port}"
lease_ttl = "5s"
[pod.hooks]
warm = {{ url = "http://127.0.0.1:{service.port}/warm" }}
sync = {{ url = "http://127.0.0.1:{service.port}/sync" }}
""")
        self.settle()
        for partition in range(PARTITIONS):
            threading.Thread(target=self.load, args=(partition,), daemon=True).start()

    def certificate(self, days):
        cert, key = (os.path.join(self.folder, name) for name in ("cert.pem", "key.pem"))
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                        "-days", str(days), "-subj", "/CN=router", "-addext", "subjectAltName=DNS:localhost",
                        "-keyout", key, "-out", cert], check=True, capture_output=True)
        socket = os.path.join(self.folder, "hot-restart.sock")
        return f'tls = {{ cert = "{cert}", key = "{key}" }}\nhot_restart_socket = "{socket}"'

    def add(self, name, sections):
        self.ports[name] = free_port()
        self.configs[name] = os.path.join(self.folder, f"{name}.toml")
        with open(self.configs[name], "w", encoding="utf-8") as out:
            out.write(f'keyspace = "site"\n[store]\nendpoints = ["{self.etcd.url}"]\n{sections}\n'
                      f'[admin]\nlisten = "127.0.0.1:{self.ports[name]}"\n')
        self.start(name)

    def start(self, name):
        self.processes[name] = self.run(name)

    def run(self, name):
        return Process(name, self.folder, [self.segue, "run", "--config", self.configs[name]])

    def stranger(self):
        """Starts a coordinator of another keyspace."""
        config = os.path.join(self.folder, "stranger.toml")
        with open(config, "w", encoding="utf-8") as out:
            out.write(f'keyspace = "other"\n[store]\nendpoints = ["{self.etcd.url}"]\n[coordinator]\nname = "stranger"\n'
                      f'[admin]\nlisten = "127.0.0.1:{self.stranger_port}"\n')
        return Process("stranger", self.folder, [self.segue, "run", "--config", config])

    def pid(self, name):
        return self.processes[name].process.pid

    def operator(self, *arguments):
        command = [self.segue, *arguments, "--etcd", self.etcd.url, "--keyspace", "site"]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)

    def status(self):
        output = self.operator("status", "--json").stdout
        return json.loads(output) if output else {}

    def settle(self):
        def settled():
            status = self.status()
            return (status.get("leader") and len(status["pods"]) == 2 and len(status["routers"]) == 2
                    and not status["handoffs"] and not status["unowned"]
                    and all(is_up(f"http://127.0.0.1:{port}/ready") for port in self.ports.values()) and status)
        return until(settled, "a settled site")

    def move(self, partition, pod, refusal=None):
        """Asks for a move and does not wait for it. `refusal`: what the pod may have answered by then."""
        asked = self.operator("move", str(partition), "--to", pod, "--no-wait")
        # 4: the coordinator has not answered within half a minute, and will find the order.
        assert asked.returncode in (0, 4) or (refusal and refusal in asked.stderr), asked.stderr

    def other_owner(self, partition):
        """Returns the pod that does not own the partition."""
        explained = self.operator("explain", str(partition), "--json")
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

    def put(self, key, value):
        encode = lambda text: base64.b64encode(text.encode()).decode()  # noqa: E731
        if value is None:
            return read(f"{self.etcd.url}/v3/kv/deleterange", {"key": encode(f"/segue/site/{key}")})
        return read(f"{self.etcd.url}/v3/kv/put", {"key": encode(f"/segue/site/{key}"), "value": encode(value)})

    def restart_etcd(self):
        self.etcd.process = Process("etcd", self.folder, self.etcd.process.process.args)
        until(self.etcd.is_up, "etcd")

    def signal(self, name, number):
        os.kill(self.pid(name), number)

    def end(self):
        self.loading.clear()
        # A stopped process is not ended by SIGTERM.
        self.signal("router-tls", signal.SIGCONT)


class Demo:
    """`segue demo` with an admin endpoint."""

    def __init__(self, segue, folder):
        self.port = free_port()
        self.process = Process("demo", folder, [
            segue, "demo", "--json", "--admin", f"127.0.0.1:{self.port}", "--seed", "7", "--duration", "900s",
            "--partitions", "16", "--clients", "4", "--rate", "40",
        ])
        until(lambda: is_up(f"http://127.0.0.1:{self.port}/ready"), "the demo")


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
        return json.loads(read(f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"))["data"]

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
