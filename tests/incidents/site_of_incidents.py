"""The site on which the incidents are played: etcd, two coordinators, two routers, three pods behind sidecars, forty clients, and
what an operator looks at: commands, page, logs, metrics and alerts."""

import contextlib
import json
import os
import re
import subprocess
import sys

from harness.certificates import self_signed
from harness.etcd import Etcd
from harness.ports import free_port
from harness.processes import Process
from harness.prometheus import Prometheus, rules_of
from harness.segue import ANYWHERE, Segue, at
from harness.waiting import until
from harness.web import accepts, is_up, read

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.normpath(os.path.join(HERE, "..", ".."))
PODS = ("writer-0", "writer-1", "writer-2")
ROUTERS = ("router-0", "router-1")
COORDINATORS = ("coordinator-0", "coordinator-1")
KEYSPACE = "orders"


class Site(Segue):
    """Settings are the defaults, as operators have them, but that pods' leases are as short as those of other processes."""

    def __init__(self, segue, folder):
        super().__init__(segue, folder, Etcd(folder), KEYSPACE)
        self.admins, self.fronts, self.sidecars, self.services, self.sections, self.processes = {}, {}, {}, {}, {}, {}
        self.cert, self.key = self_signed(folder, days=90)
        for name in COORDINATORS:
            self.add(name, {"coordinator": {"name": name, "partitions": 64, "listen": ANYWHERE}})
        for name in ROUTERS:
            self.fronts[name] = free_port()
            self.add(name, {"router": {
                "name": name, "listen": at(self.fronts[name]), "workers": 1, "partition": {"key": {"path": "/orders/{key}"}},
            }})
        for name in PODS:
            self.sidecars[name], self.services[name] = free_port(), free_port()
            service = self.services[name]
            self.add(name, {"pod": {
                "name": name, "listen": at(self.sidecars[name]), "upstream": at(service),
                "exec": self.service(name),
                "hooks": {hook: {"url": f"http://{at(service)}/{hook}"} for hook in ("warm", "sync", "release")},
            }})
        until(self.is_settled, "a settled site")
        self.load = self.clients("clients", 40, 5, 500)
        rules = rules_of(os.path.join(ROOT, "deploy/prometheus/alerts.yaml"))
        self.prometheus = Prometheus(folder, rules, {KEYSPACE: self.admins}, KEYSPACE)

    def service(self, name, behaviour=""):
        """Returns the command of a pod's service."""
        return [sys.executable, os.path.join(HERE, "service.py"), str(self.services[name]), behaviour]

    def python(self, name, program, *arguments):
        return Process(name, self.folder, [sys.executable, os.path.join(HERE, program), *map(str, arguments)])

    def clients(self, name, clients, per_second, keys):
        return self.python(name, "clients.py", clients, per_second, keys, *self.fronts.values())

    def add(self, name, sections):
        self.admins[name] = free_port()
        self.sections[name] = sections | {"admin": {"listen": at(self.admins[name])}}
        self.begin(name)

    def begin(self, name, *before, **changed):
        """Starts a process of the site. `before`: the words of a program that starts it. `changed`: settings of its role."""
        role = next(iter(self.sections[name]))
        sections = self.sections[name] | {role: self.sections[name][role] | changed}
        config = self.configure(name, sections)
        self.processes[name] = Process(name, self.folder, [*before, self.program, "run", "--config", config])

    def end(self, name):
        self.processes[name].end()
        self.processes[name].process.wait(60)

    def have(self, pod, **behaviour):
        """Tells a service how to behave."""
        read(f"http://{at(self.services[pod])}/be?" + "&".join(f"{key}={value}" for key, value in behaviour.items()))

    def is_settled(self):
        status = self.status()
        return (status.get("leader") and len(status["pods"]) == len(PODS) and len(status["routers"]) == len(ROUTERS)
                and not status["handoffs"] and not status["unowned"] and all(pod["partitions"] for pod in status["pods"])
                and all(is_up(f"http://{at(port)}/ready") for port in self.admins.values()))

    def says(self, *words, of="coordinator-0"):
        """Returns what a command prints that asks a process."""
        command = [self.program, *words, "--server", f"http://{at(self.admins[of])}", "--keyspace", KEYSPACE]
        ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        return ended.stdout + ended.stderr

    def owner(self, partition):
        return json.loads(self.says("explain", str(partition), "--json"))["owner"]

    def check(self):
        """Returns what `segue check --store` prints of each process's file."""
        files = (os.path.join(self.folder, f"{name}.toml") for name in self.admins)
        ended = (subprocess.run([self.program, "check", "--store", "--config", file], capture_output=True, text=True, check=False,
                                timeout=60) for file in files)
        return "".join(one.stdout + one.stderr for one in ended)

    def ready(self):
        """Returns what each process says of its being ready, in lines."""
        return "".join(f"{name}: {ready(port)}\n" for name, port in self.admins.items() if accepts(port))

    def metrics(self):
        pages = (read(f"http://{at(port)}/metrics") for port in self.admins.values() if accepts(port))
        return "".join(pages)


def ready(port):
    """Returns the body, whatever the status."""
    ended = subprocess.run(["curl", "-s", "-m", "5", f"http://{at(port)}/ready"], capture_output=True, text=True, check=False)
    return ended.stdout.strip()


class LogReader:
    """What processes of Segue have logged at `warn` and `error` since the reader was made, or since `skip`."""

    def __init__(self, site):
        self.site, self.seen = site, {}
        self.skip()

    def skip(self):
        self.seen = {path: os.path.getsize(path) for path in self.paths()}

    def paths(self):
        return {self.site.processes[name].log for name in self.site.admins}

    def lines(self):
        found = []
        for path in sorted(self.paths()):
            with open(path, encoding="utf-8", errors="replace") as log:
                log.seek(self.seen.get(path, 0))
                name = os.path.basename(path).removesuffix(".log")
                found += [f"{name}: {line.rstrip()}" for line in log if re.search(r"\b(WARN|ERROR)\b|panicked", line)]
        return found


@contextlib.contextmanager
def stopped_by_signal(process, stop, go_on):
    process.send_signal(stop)
    try:
        yield
    finally:
        process.send_signal(go_on)
