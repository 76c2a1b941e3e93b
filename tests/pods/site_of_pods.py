"""A site: etcd, coordinators, routers, and writer pods of every example, each a process."""

import asyncio
import os
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
EXAMPLES = os.path.join(ROOT, "examples")
sys.path[:0] = [os.path.join(ROOT, "tests/interop"), os.path.join(EXAMPLES, "python-etcd-pod")]

import etcd as store  # noqa: E402
from processes import PATIENCE, Etcd, Process, free_port, until  # noqa: E402

from breaker import Breaker  # noqa: E402

PREFIX = "/segue/default/"
LEASE = 3
COORDINATORS, ROUTERS = 3, 2


class Pod:
    """A pod and the command that starts it, without the address on which it listens."""

    def __init__(self, name, language, command):
        self.name, self.language, self.command = name, language, command
        self.process = None


class Site:
    def __init__(self, binaries, folder, partitions):
        self.segue, self.binaries = os.path.join(binaries, "segue"), binaries
        self.folder, self.partitions = folder, partitions
        self.logs = os.path.join(folder, "partitions")
        self.etcd = Etcd(folder)
        self.store = store.Etcd([self.etcd.url], timeout=5)
        self.pods, self.coordinators, self.routers = {}, {}, []
        self.ports = {f"c-{number}": free_port() for number in range(COORDINATORS)}

    async def start(self, each, sabotage):
        await until(self.etcd.is_up, "etcd")
        etcd_port = int(self.etcd.url.rsplit(":", 1)[1])
        self.etcd_breaker = await Breaker(free_port(), etcd_port).start()
        self.breakers = [self.etcd_breaker]
        for name, port in self.ports.items():
            self.breakers.append(await Breaker(free_port(), port).start())
            self.start_coordinator(name)
        self.routers = [self.start_router(f"r-{number}") for number in range(ROUTERS)]
        pods = list(self.examples(each))
        if sabotage:
            pods.append(self.broken(sabotage, pods))
        for pod in pods:
            self.pods[pod.name] = pod
            self.start_pod(pod)
        await self.settled()

    async def settled(self):
        """Waits until every pod owns partitions, every partition is owned, and none moves."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            view = await self.view()
            owners = [view.get(f"assignments/{partition}") for partition in range(self.partitions)]
            lives = [owner and (owner.value["owner"], owner.value["incarnation"]) for owner in owners]
            alive = {(name, view[f"pods/{name}"].create_revision) for name in self.pods if f"pods/{name}" in view}
            if set(lives) == alive and len(alive) == len(self.pods) and not any("handoffs/" in key for key in view):
                return
            await asyncio.sleep(0.1)
        raise AssertionError(f"the site does not settle: {len(alive)} pods, {sorted(set(map(str, lives)))} own partitions")

    async def view(self):
        _, entries = await self.store.snapshot(PREFIX)
        return {entry.key.removeprefix(PREFIX): entry for entry in entries}

    def examples(self, each):
        """Returns the pods of every example. They reach etcd and the coordinators through the breakers."""
        etcd = f"http://{self.etcd_breaker.address}"
        grpc = [breaker.address for breaker in self.breakers[1:]]
        python = os.path.join(ROOT, ".tools/pods/bin/python")
        logs = ["--log-dir", self.logs]
        times = [*logs, "--lease-ttl", str(LEASE), "--warm-time", "0.03", "--service-time", "0.002"]
        go_times = [*logs, "--lease-ttl", f"{LEASE}s", "--warm-time", "30ms", "--service-time", "2ms"]
        rust_times = [*logs, "--lease-ttl", str(LEASE), "--warm-time", "30", "--service-time", "2"]
        known = [word for address in grpc for word in ("--coordinator", address)]
        kinds = {
            "python-grpc": [python, os.path.join(EXAMPLES, "python-grpc-pod/pod.py"), *known, *times],
            "python-etcd": [python, os.path.join(EXAMPLES, "python-etcd-pod/pod.py"), "--etcd", etcd, *times],
            "go-grpc": [os.path.join(self.binaries, "go-grpc-pod"), "--coordinator", ",".join(grpc), *go_times],
            "rust-linked": [os.path.join(self.binaries, "examples/writer"), "--etcd", etcd, *rust_times],
        }
        for kind, command in kinds.items():
            for number in range(each):
                yield Pod(f"{kind}-{number}", kind.split("-")[0], command)

    def broken(self, fault, pods):
        """Returns one more pod of an example, with this fault."""
        example = next(pod for pod in pods if pod.name == f"python-{fault.split('-')[0]}-0")
        python, _, *rest = example.command
        return Pod("python-broken", "python", [python, os.path.join(HERE, "broken.py"), fault, *rest])

    def run(self, name, sections):
        config = os.path.join(self.folder, f"{name}.toml")
        with open(config, "w", encoding="utf-8") as out:
            out.write(f'[store]\nendpoints = ["{self.etcd.url}"]\n{sections}')
        return Process(name, self.folder, [self.segue, "run", "--config", config])

    def start_coordinator(self, name):
        self.coordinators[name] = self.run(name, f"""
[coordinator]
name = "{name}"
partitions = {self.partitions}
lease_ttl = "2s"
settle = "50ms"
min_interval = "100ms"
cool_down = "0s"
listen = "127.0.0.1:{self.ports[name]}"
""")

    def start_router(self, name):
        port = free_port()
        self.run(name, f"""
[router]
name = "{name}"
listen = "127.0.0.1:{port}"
lease_ttl = "3s"
workers = 1
[router.partition]
header = "x-partition"
order_by = {{ header = "x-key" }}
[router.drain]
timeout = "5s"
[router.upstream]
protocol = "http1"
""")
        return f"http://127.0.0.1:{port}"

    def start_pod(self, pod):
        # A port of its own for each life: connections to the one before may still be closing.
        listen = f"127.0.0.1:{free_port()}"
        pod.process = Process(pod.name, self.folder, [*pod.command, "--name", pod.name, "--listen", listen])
