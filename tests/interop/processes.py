"""Real processes: etcd, and for each kind of service a router with its coordinator and two pods behind sidecars.

Each kind has a keyspace of one partition, which moves whenever the sidecar that owns it is told to end: what a rolling
restart does. Nothing is faked, and what a process printed is shown when a check has failed.
"""

import asyncio
import json
import os
import signal
import socket
import subprocess
import time
import urllib.request

from ports import free_port

PATIENCE = 60.0
# What outlasts a drain is severed after this.
DRAIN = 1.5


class Process:
    # All that were started, to be ended whatever happens.
    started = []

    def __init__(self, name, folder, command):
        self.name = name
        self.log = os.path.join(folder, f"{name}.log")
        with open(self.log, "ab") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL)
        Process.started.append(self)

    def end(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def resident(self):
        """Bytes of memory that are its own."""
        with open(f"/proc/{self.process.pid}/status", encoding="ascii") as status:
            line = next(line for line in status if line.startswith("VmRSS"))
        return int(line.split()[1]) * 1024

    def has_said(self, text):
        with open(self.log, encoding="utf-8", errors="replace") as log:
            return text in log.read()

    def tail(self):
        with open(self.log, encoding="utf-8", errors="replace") as log:
            return "".join(log.readlines()[-30:])


async def until(condition, what):
    deadline = time.monotonic() + PATIENCE
    while True:
        found = await asyncio.to_thread(condition)
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"waited in vain for {what}")
        await asyncio.sleep(0.02)


class Etcd:
    def __init__(self, folder):
        client, peer = free_port(), free_port()
        self.url = f"http://127.0.0.1:{client}"
        self.process = Process("etcd", folder, [
            "etcd", "--data-dir", os.path.join(folder, "etcd"), "--listen-client-urls", self.url,
            "--advertise-client-urls", self.url, "--listen-peer-urls", f"http://127.0.0.1:{peer}",
            "--initial-advertise-peer-urls", f"http://127.0.0.1:{peer}",
            "--initial-cluster", f"default=http://127.0.0.1:{peer}", "--unsafe-no-fsync",
        ])

    def is_up(self):
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=1) as answer:
                return b"true" in answer.read()
        except OSError:
            return False


class Cluster:
    """A router and two pods, `a` and `b`, in front of one kind of service."""

    # What serves HTTP/1.1 clients.
    http1_server = "segue"

    def __init__(self, segue, folder, etcd, kind, upstreams, protocol="auto", limits="", past_sidecar=False):
        self.segue, self.folder, self.etcd, self.kind = segue, folder, etcd, kind
        self.upstreams = upstreams
        # Routers then send to the service itself, and the sidecar only takes part.
        self.past_sidecar = past_sidecar
        self.protocol = protocol
        self.port, self.admin = free_port(), free_port()
        self.pods = {}
        self.moving = asyncio.Lock()
        self.router = self.start("router", f"""
[router]
name = "router"
listen = "127.0.0.1:{self.port}"
lease_ttl = "5s"
workers = 1
http1_server = "{self.http1_server}"
[router.upstream]
protocol = "{protocol}"
request_timeout = "10s"
[router.drain]
timeout = "{int(DRAIN * 1000)}ms"
on_timeout = "sever"
{limits}
[coordinator]
name = "coordinator"
partitions = 1
lease_ttl = "5s"
settle = "50ms"
min_interval = "100ms"
cool_down = "0s"
listen = "127.0.0.1:0"
[admin]
listen = "127.0.0.1:{self.admin}"
""")
        for pod in upstreams:
            self.start_pod(pod)

    def start(self, name, sections):
        config = os.path.join(self.folder, f"{self.kind}-{name}.toml")
        with open(config, "w", encoding="utf-8") as out:
            out.write(f'keyspace = "{self.kind}"\n[store]\nendpoints = ["{self.etcd.url}"]\n{sections}')
        return Process(f"{self.kind}-{name}", self.folder, [self.segue, "run", "--config", config])

    def start_pod(self, name):
        # A port of its own for each life: the one before may still be closing.
        listen = free_port()
        advertised = self.upstreams[name] if self.past_sidecar else listen
        self.pods[name] = self.start(name, f"""
[pod]
name = "{name}"
listen = "127.0.0.1:{listen}"
advertise = "127.0.0.1:{advertised}"
upstream = "127.0.0.1:{self.upstreams[name]}"
protocol = "{self.protocol}"
lease_ttl = "5s"
""")

    def status(self):
        command = [self.segue, "status", "--json", "--etcd", self.etcd.url, "--keyspace", self.kind]
        output = subprocess.run(command, capture_output=True, check=False, timeout=20)
        try:
            return json.loads(output.stdout)
        except ValueError:
            return {}

    def owner(self):
        """Who serves the partition, if nothing moves."""
        status = self.status()
        if status.get("handoffs"):
            return None
        owners = [pod["name"] for pod in status.get("pods", []) if pod["partitions"] > 0]
        return owners[0] if owners else None

    def listens(self):
        for port in self.upstreams.values():
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
            except OSError:
                return False
        return True

    async def ready(self):
        await until(self.listens, f"the services of {self.kind}")
        await until(self.owner, f"an owner among the pods of {self.kind}")
        await until(lambda: self.ready_pods() == set(self.upstreams), f"both pods of {self.kind}")

    def ready_pods(self):
        return {pod["name"] for pod in self.status().get("pods", [])}

    async def move(self):
        """Has the owner leave, as a rolling restart does; returns when the other one owns the partition."""
        async with self.moving:
            old = await until(self.owner, "an owner")
            leaving = self.pods[old]
            leaving.end()
            await until(lambda: self.owner() not in (None, old), f"{self.kind} to move away from {old}")
            code = await asyncio.to_thread(leaving.process.wait, PATIENCE)
            assert code == 0, f"{old} ended with {code}: {leaving.tail()}"
            self.start_pod(old)
            await until(lambda: old in self.ready_pods(), f"{old} to come back")
