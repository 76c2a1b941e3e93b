"""For each kind of service a router with its coordinator and two pods behind sidecars, each a real process.

Each kind has a keyspace of one partition, which moves whenever the sidecar that owns it is told to end: what a rolling
restart does. Nothing is faked.
"""

import asyncio
import socket

from harness.ports import free_port
from harness.segue import ANYWHERE, QUICK, Segue, at
from harness.waiting import PATIENCE, eventually

# What outlasts a drain is severed after this.
DRAIN = 1.5


class Cluster(Segue):
    """A router and two pods, `a` and `b`, in front of one kind of service."""

    def __init__(self, segue, folder, etcd, kind, upstreams, protocol="auto", router=None, past_sidecar=False):
        super().__init__(segue, folder, etcd, kind)
        self.kind, self.upstreams = kind, upstreams
        # Routers then send to the service itself, and the sidecar only takes part.
        self.past_sidecar = past_sidecar
        self.protocol = protocol
        self.port, self.admin = free_port(), free_port()
        self.pods = {}
        self.moving = asyncio.Lock()
        self.router = self.run(f"{kind}-router", {
            "router": {
                "name": "router", "listen": at(self.port), "lease_ttl": "5s", "workers": 1,
                "upstream": {"protocol": protocol, "request_timeout": "10s"},
                "drain": {"timeout": f"{int(DRAIN * 1000)}ms", "on_timeout": "sever"},
            } | (router or {}),
            "coordinator": {"name": "coordinator", "partitions": 1, "lease_ttl": "5s", "listen": ANYWHERE} | QUICK,
            "admin": {"listen": at(self.admin)},
        })
        for pod in upstreams:
            self.start_pod(pod)

    def start_pod(self, name):
        # A port of its own for each life: the one before may still be closing.
        listen, upstream = free_port(), self.upstreams[name]
        self.pods[name] = self.run(f"{self.kind}-{name}", {"pod": {
            "name": name, "listen": at(listen), "advertise": at(upstream if self.past_sidecar else listen), "upstream": at(upstream),
            "protocol": self.protocol, "lease_ttl": "5s",
        }})

    def owner(self):
        """Who serves the partition, if nothing moves."""
        status = self.status()
        if status.get("handoffs"):
            return None
        owners = [pod["name"] for pod in status.get("pods", []) if pod["partitions"] > 0]
        return owners[0] if owners else None

    def listens(self):
        for port in self.upstreams.values():
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        return True

    async def ready(self):
        await eventually(self.listens, f"the services of {self.kind}")
        await eventually(self.owner, f"an owner among the pods of {self.kind}")
        await eventually(lambda: self.ready_pods() == set(self.upstreams), f"both pods of {self.kind}")

    def ready_pods(self):
        return {pod["name"] for pod in self.status().get("pods", [])}

    async def move(self):
        """Has the owner leave, as a rolling restart does; returns when the other one owns the partition."""
        async with self.moving:
            old = await eventually(self.owner, "an owner")
            leaving = self.pods[old]
            leaving.end()
            await eventually(lambda: self.owner() not in (None, old), f"{self.kind} to move away from {old}")
            code = await asyncio.to_thread(leaving.process.wait, PATIENCE)
            assert code == 0, f"{old} ended with {code}: {leaving.tail()}"
            self.start_pod(old)
            await eventually(lambda: old in self.ready_pods(), f"{old} to come back")
