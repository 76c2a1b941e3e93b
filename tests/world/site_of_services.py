"""A site: etcd, a coordinator, two routers of which one has TLS, and for each service three pods, each a sidecar that
starts its service by `exec`. The pods of a service share a folder, and each service has a keyspace of its own."""

import asyncio
import json
import os
import re
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(os.path.dirname(HERE), "interop"), os.path.join(HERE, "services")]

from processes import Etcd, Process, free_port, until  # noqa: E402: the same processes as `make foreign` has

from drain_hook import socket_of  # noqa: E402
from store_view import StoreView  # noqa: E402

PARTITIONS, PODS = 6, 3
# How long a pod's registration outlives it.
LEASE = 4


class Pod:
    """A sidecar with its service. Each life has ports of its own: those of the one before may still be closing."""

    def __init__(self, site, service, name):
        self.site, self.service, self.name = site, service, name
        self.start()

    def start(self):
        self.address, self.port = f"127.0.0.1:{free_port()}", free_port()
        program = os.path.join(HERE, "services", self.service.program)
        options = ["--name", self.name, "--port", str(self.port), "--folder", self.service.folder]
        self.command = [sys.executable, program, *options, *self.service.options]
        self.process = self.site.run(self.name, f"""
keyspace = "{self.service.name}"
[pod]
name = "{self.name}"
listen = "{self.address}"
upstream = "127.0.0.1:{self.port}"
lease_ttl = "{LEASE}s"
exec = {json.dumps(self.command)}
{self.hooks()}
[store]
""")

    def hooks(self):
        if not self.service.has_drain_hook:
            return ""
        return f'[pod.hooks]\ndrain = {{ url = "unix:{socket_of(self.service.folder, self.name)}:/drain" }}'

    def processes_of_service(self):
        """Returns the ids of the processes that run its service."""
        command = ["pgrep", "--full", "--exact", re.escape(" ".join(self.command))]
        return [int(line) for line in subprocess.run(command, capture_output=True, check=False).stdout.split()]

    def is_registered(self, view):
        entry = view.get(f"pods/{self.name}")
        return entry is not None and entry.value["address"] == self.address and entry.value["status"] == "Ready"


class Site:
    def __init__(self, segue, folder):
        self.segue, self.folder = segue, folder
        self.etcd = Etcd(folder)
        self.view = StoreView(self.etcd.url)
        self.port, self.tls_port = free_port(), free_port()
        self.url, self.tls_url = f"http://127.0.0.1:{self.port}", f"https://127.0.0.1:{self.tls_port}"
        self.certificate, self.key = os.path.join(folder, "router.pem"), os.path.join(folder, "router.key")
        self.pods = {}  # by service

    async def start(self, services):
        await until(self.etcd.is_up, "etcd")
        self.make_certificate()
        names = "".join(f'[[keyspaces]]\nname = "{service.name}"\n' for service in services)
        self.run("coordinator", f"""
[coordinator]
name = "coordinator"
partitions = {PARTITIONS}
lease_ttl = "5s"
settle = "200ms"
min_interval = "200ms"
cool_down = "0s"
[store]
endpoints = ["{self.etcd.url}"]
{names}""", endpoints=False)
        routes = "".join(
            f'[[keyspaces]]\nname = "{service.name}"\nmatch = {{ path_prefix = "{service.prefix}" }}\n'
            f"partition = {{ key = {service.key} }}\n" for service in services
        )
        tls = f'tls = {{ cert = "{self.certificate}", key = "{self.key}" }}'
        for name, port, more in (("router", self.port, ""), ("router-tls", self.tls_port, tls)):
            self.run(name, f"""
[router]
name = "{name}"
listen = "127.0.0.1:{port}"
lease_ttl = "5s"
workers = 1
{more}
[store]
endpoints = ["{self.etcd.url}"]
{routes}""", endpoints=False)
        for service in services:
            self.pods[service.name] = [Pod(self, service, f"{service.name}-{number}") for number in range(PODS)]
        for service in services:
            assert await self.settled(service.name, 180), f"the pods of {service.name} do not settle"

    def make_certificate(self):
        subprocess.run([
            "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
            "-days", "2", "-subj", "/CN=world", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost",
            "-keyout", self.key, "-out", self.certificate,
        ], check=True, capture_output=True)

    def run(self, name, sections, endpoints=True):
        """Runs the roles of these sections. The last section is the store's, unless that is complete."""
        config = os.path.join(self.folder, f"{name}.toml")
        with open(config, "w", encoding="utf-8") as out:
            out.write(sections + (f'endpoints = ["{self.etcd.url}"]\n' if endpoints else ""))
        return Process(name, self.folder, [self.segue, "run", "--config", config])

    async def settled(self, name, patience):
        """Waits until all pods of the service are registered, all partitions are theirs, and none moves. Returns
        whether that came within the patience."""
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            view = await self.view.keyspace(name)
            registered = [pod.name for pod in self.pods[name] if pod.is_registered(view)]
            alive = {(pod, view[f"pods/{pod}"].create_revision) for pod in registered}
            owners = [view.get(f"assignments/{partition}") for partition in range(PARTITIONS)]
            lives = {owner and (owner.value["owner"], owner.value["incarnation"]) for owner in owners}
            if len(alive) == PODS and lives <= alive and not any(key.startswith("handoffs/") for key in view):
                return True
            await asyncio.sleep(0.1)
        return False

    async def operate(self, name, *command):
        """Runs a command of operators in a keyspace. Returns its code and what it printed."""
        process = await asyncio.create_subprocess_exec(
            self.segue, *command, "--etcd", self.etcd.url, "--keyspace", name,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate()
        return process.returncode, output.decode().strip()
