"""What the page shows: a demo in one process, a cluster of processes, and a keyspace of 65,536 partitions."""

import functools
import http.server
import json
import os
import ssl
import threading

from harness import segue as program
from harness import waiting
from harness.certificates import Authority
from harness.etcd import Etcd
from harness.ports import free_port
from harness.segue import ANYWHERE, QUICK, Segue, at
from harness.web import read

# A machine that is busy with other tests may take minutes for what takes a second alone.
until = functools.partial(waiting.until, patience=180.0)


class Admin:
    """The admin endpoint of a process."""

    def __init__(self, port, ca=None):
        self.url = f"{'https' if ca else 'http'}://{at(port)}"
        self.context = ssl.create_default_context(cafile=ca) if ca else None

    def get(self, path):
        return json.loads(read(f"{self.url}{path}", context=self.context))

    def keyspace(self, name=None):
        return self.get(f"/status?keyspace={name}" if name else "/status")["keyspace"]


class Demo(program.Demo):
    def __init__(self, segue, folder, *arguments):
        super().__init__(segue, folder, *arguments)
        self.admin = Admin(self.port)


class Cluster(Segue):
    """A coordinator, two routers and pods behind sidecars, each a process of its own.

    No lease and no phase ends by its time: a router that a check stops stays registered, and the handoff that waits for it stands for
    as long as the check looks at it.
    """

    TOKEN = "correct-horse-battery-staple"
    PODS = ["a"]

    def __init__(self, segue, folder, write=None, ca=None):
        super().__init__(segue, folder, Etcd(folder), "page")
        port = free_port()
        self.admin = Admin(port, ca)
        self.run("coordinator", {
            "coordinator": {"name": "c-0", "partitions": 16, "lease_ttl": "1h", "phase_timeout": "1h", "listen": ANYWHERE,
                            **QUICK, "cool_down": "10s"},
            "admin": {"listen": at(port)} | (write or {}),
        })
        self.routers = {name: self.run(name, {"router": {
            "name": name, "listen": at(free_port()), "lease_ttl": "1h", "partition": {"header": "x-partition"},
        }}) for name in ("r-0", "r-1")}
        for pod in self.PODS:
            self.pod(pod)
        until(lambda: self.at_rest(self.PODS), "a cluster at rest")

    def token(self):
        """Returns the settings of an endpoint that admits those with the token."""
        token = os.path.join(self.folder, "token")
        with open(token, "w", encoding="utf-8") as out:
            out.write(self.TOKEN)
        return {"write": "token", "token_file": token}

    def pod(self, name):
        listen, upstream = free_port(), free_port()
        # A pod registers once its service accepts connections.
        service = http.server.ThreadingHTTPServer(("127.0.0.1", upstream), http.server.BaseHTTPRequestHandler)
        threading.Thread(target=service.serve_forever, daemon=True).start()
        return self.run(name, {"pod": {"name": name, "listen": at(listen), "upstream": at(upstream), "lease_ttl": "1h"}})

    def explain(self, partition):
        return self.admin.get(f"/v1/partitions/{partition}")

    def at_rest(self, pods):
        keyspace = self.admin.keyspace()
        return (not keyspace["handoffs"] and keyspace["unowned"] == 0 and len(keyspace["routers"]) == 2
                and all(pod["partitions"] > 0 for pod in keyspace["pods"])
                and {pod["name"] for pod in keyspace["pods"]} == set(pods))


class Operated(Cluster):
    """The same with two pods, and an endpoint that admits those with a token."""

    PODS = ["a", "b"]

    def __init__(self, segue, folder):
        self.folder = folder
        super().__init__(segue, folder, self.token())

    def change(self, method, path, body=None):
        """Does what an operator does by another way than the page."""
        headers = {"authorization": f"Bearer {self.TOKEN}", "content-type": "application/json"}
        return read(f"{self.admin.url}{path}", body or {}, timeout=60, method=method, headers=headers)


class Certified(Cluster):
    """The same with an endpoint by TLS, which admits those with a certificate."""

    PODS = ["a", "b"]

    def __init__(self, segue, folder):
        self.authority = Authority(os.path.join(folder, "tls"))
        ca = self.authority.path("ca.pem")
        super().__init__(segue, folder, {"write": "client_cert", "tls": self.authority.tls() | {"client_ca": ca}}, ca)


class TwoKeyspaces(Cluster):
    """A coordinator of two keyspaces, and a pod in both."""

    PARTITIONS = {"persons": 8, "orders": 12}

    def __init__(self, segue, folder):
        Segue.__init__(self, segue, folder, Etcd(folder))
        port = free_port()
        self.admin = Admin(port)
        self.run("coordinator", {
            "coordinator": {"name": "c-0", "lease_ttl": "5s", **QUICK, "cool_down": "10s"},
            "admin": {"listen": at(port)} | self.token(),
            "keyspaces": [{"name": name, "partitions": count} for name, count in self.PARTITIONS.items()],
        })
        self.own = {"keyspaces": [{"name": name} for name in self.PARTITIONS]}
        self.pod("a")
        until(lambda: all(self.is_settled(name) for name in self.PARTITIONS), "both keyspaces at rest")

    def is_settled(self, name):
        status = self.admin.keyspace(name)
        return (not status["handoffs"] and status["unowned"] == 0
                and [pod["partitions"] for pod in status["pods"]] == [self.PARTITIONS[name]])


class LargeKeyspace:
    """65,536 partitions of 12 pods, written straight to etcd, and a router that shows them."""

    PARTITIONS = 65_536
    PODS = 12
    ROOT = "/segue/large/"

    def __init__(self, segue, folder):
        self.etcd = Etcd(folder)
        lease = self.etcd.grant(600)
        self.etcd.put_records(self.ROOT, {"config": {"partitions": self.PARTITIONS}})
        self.pods = [f"w-{number}" for number in range(self.PODS)]
        self.lives = {pod: self.etcd.put_records(self.ROOT, {f"pods/{pod}": {"pod_name": pod, "address": "127.0.0.1:1"}}, lease)
                      for pod in self.pods}
        self.epoch, self.owners = 1, {}
        for first in range(0, self.PARTITIONS, 128):
            self.assign({partition: self.pods[partition * 7 % self.PODS] for partition in range(first, first + 128)})
        port = free_port()
        self.admin = Admin(port)
        self.process = Segue(segue, folder, self.etcd, "large").run("large", {
            "router": {"name": "r-0", "listen": at(free_port()), "workers": 1, "partition": {"header": "x-partition"}},
            "admin": {"listen": at(port)},
            "log": {"level": "debug"},
        })

        def is_read():
            keyspace = self.admin.keyspace()
            return keyspace["partitions"] == self.PARTITIONS and keyspace["unowned"] == 0

        until(is_read, "all partitions in /status")

    def assign(self, owners):
        self.epoch += 1
        self.owners |= owners
        self.etcd.put_records(self.ROOT, {f"assignments/{partition}": {
            "partition": partition, "owner": pod, "incarnation": self.lives[pod], "epoch": self.epoch,
        } for partition, pod in owners.items()})
