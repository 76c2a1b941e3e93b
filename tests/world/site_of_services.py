"""A site: etcd, a coordinator, two routers of which one has TLS, and for each service three pods, each a sidecar that
starts its service by `exec`. The pods of a service share a folder, and each service has a keyspace of its own."""

import asyncio
import os
import re
import subprocess
import sys

from drain_hook import socket_of
from harness.certificates import self_signed
from harness.etcd import Etcd
from harness.ports import free_port
from harness.segue import QUICK, Segue, at
from harness.store_view import StoreView
from harness.waiting import eventually
from harness.web import accepts

HERE = os.path.dirname(os.path.abspath(__file__))

PARTITIONS, PODS = 6, 3
# How long a pod's registration outlives it.
LEASE = 4


class Pod:
    """A sidecar with its service. Each life has ports of its own: those of the one before may still be closing."""

    def __init__(self, site, service, name):
        self.site, self.service, self.name = site, service, name
        self.start()

    def start(self):
        self.address, self.port = at(free_port()), free_port()
        program = os.path.join(HERE, "services", self.service.program)
        options = ["--name", self.name, "--port", str(self.port), "--folder", self.service.folder]
        self.command = [sys.executable, program, *options, *self.service.options]
        drain = {"drain": {"url": f"unix:{socket_of(self.service.folder, self.name)}:/drain"}}
        self.process = self.site.run(self.name, {"keyspace": self.service.name, "pod": {
            "name": self.name, "listen": self.address, "upstream": at(self.port), "lease_ttl": f"{LEASE}s", "exec": self.command,
            "hooks": drain if self.service.has_drain_hook else {},
        }})

    def processes_of_service(self):
        """Returns the ids of the processes that run its service."""
        command = ["pgrep", "--full", "--exact", re.escape(self.service.command_of(self))]
        return [int(line) for line in subprocess.run(command, capture_output=True, check=False).stdout.split()]


class Site(Segue):
    def __init__(self, segue, folder):
        super().__init__(segue, folder, Etcd(folder))
        self.view = StoreView(self.etcd.url)
        self.port, self.tls_port = free_port(), free_port()
        self.url, self.tls_url = f"http://{at(self.port)}", f"https://{at(self.tls_port)}"
        self.certificate, self.key = self_signed(folder)
        self.pods = {}  # by service

    async def begin(self, services):
        self.run("coordinator", {
            "coordinator": {"name": "coordinator", "partitions": PARTITIONS, "lease_ttl": "5s", **QUICK, "settle": "200ms"},
            "keyspaces": [{"name": service.name} for service in services],
        })
        routes = [{"name": service.name, "match": {"path_prefix": service.prefix},
                   "partition": {"key": service.key, "without_key": service.without_key}} for service in services]
        tls = {"tls": {"cert": self.certificate, "key": self.key}}
        for name, port, more in (("router", self.port, {}), ("router-tls", self.tls_port, tls)):
            router = {"name": name, "listen": at(port), "lease_ttl": "5s", "workers": 1} | more
            self.run(name, {"router": router, "keyspaces": routes})
        for service in services:
            self.pods[service.name] = [Pod(self, service, f"{service.name}-{number}") for number in range(PODS)]
        for port in (self.port, self.tls_port):
            await eventually(lambda port=port: accepts(port), "a router")
        for service in services:
            assert await self.settled(service.name, 180), f"the pods of {service.name} do not settle"

    async def settled(self, name, patience):
        """Waits until all pods of the service are registered, all partitions are theirs, and none moves. Returns
        whether that came within the patience."""
        pods = {pod.name: pod.address for pod in self.pods[name]}
        return await self.view.settled(name, PARTITIONS, pods, patience)

    async def partitions_of(self, name, pod):
        """Returns the partitions that the pod owns, or that move to or from it."""
        found = set()
        for key, entry in (await self.view.keyspace(name)).items():
            kind, _, partition = key.partition("/")
            if kind == "assignments" and entry.value["owner"] == pod:
                found.add(int(partition))
            if kind == "handoffs" and pod in (entry.value["old_owner"], entry.value["new_owner"]):
                found.add(int(partition))
        return found

    async def operate_in(self, name, *command):
        """Runs a command of operators in a keyspace. Returns its code and what it printed."""
        process = await asyncio.create_subprocess_exec(
            self.program, *command, "--etcd", self.etcd.url, "--keyspace", name,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate()
        return process.returncode, output.decode().strip()
