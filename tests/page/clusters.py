"""What the page shows: a demo in one process, a cluster of processes, and a keyspace of 65,536 partitions."""

import base64
import http.server
import json
import os
import ssl
import sys
import threading
import time
import urllib.request

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "interop"))
from processes import Etcd, Process, free_port  # noqa: E402: the same processes as `make foreign` has

from certificates import Authority  # noqa: E402

# A machine that is busy with other tests may take minutes for what takes a second alone.
PATIENCE = 180.0


def until(condition, what, patience=PATIENCE):
    deadline = time.monotonic() + patience
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.05)


class Admin:
    """The admin endpoint of a process."""

    def __init__(self, port, ca=None):
        self.url = f"{'https' if ca else 'http'}://127.0.0.1:{port}"
        self.context = ssl.create_default_context(cafile=ca) if ca else None

    def get(self, path, timeout=30):
        with urllib.request.urlopen(f"{self.url}{path}", timeout=timeout, context=self.context) as response:
            return response.read().decode(), response.headers

    def keyspace(self):
        try:
            return json.loads(self.get("/status")[0])["keyspace"]
        except OSError:
            return None


class Demo:
    """`segue demo` with an admin endpoint."""

    def __init__(self, segue, folder, *arguments):
        self.segue, self.folder, self.port, self.arguments = segue, folder, free_port(), arguments
        self.admin = Admin(self.port)
        self.start()

    def start(self):
        command = [self.segue, "demo", "--json", "--admin", f"127.0.0.1:{self.port}", "--seed", "7", *self.arguments]
        self.process = Process("demo", self.folder, command)
        until(self.admin.keyspace, "the demo's admin endpoint")


class Cluster:
    """A coordinator, two routers and pods behind sidecars, each a process of its own.

    No lease and no phase ends by its time: a router that a check stops stays registered, and the handoff that waits for it stands for
    as long as the check looks at it.
    """

    def __init__(self, segue, folder, write="", ca=None):
        self.segue, self.folder, self.etcd = segue, folder, Etcd(folder)
        until(self.etcd.is_up, "etcd")
        port = free_port()
        self.admin = Admin(port, ca)
        self.run("coordinator", f"""
[coordinator]
name = "c-0"
partitions = 16
lease_ttl = "1h"
settle = "50ms"
min_interval = "100ms"
phase_timeout = "1h"
listen = "127.0.0.1:0"
[admin]
listen = "127.0.0.1:{port}"
{write}
""")
        self.routers = {name: self.run(name, f"""
[router]
name = "{name}"
listen = "127.0.0.1:{free_port()}"
lease_ttl = "1h"
[router.partition]
header = "x-partition"
""") for name in ("r-0", "r-1")}
        self.pod("a")
        until(lambda: self.at_rest(["a"]), "a cluster at rest")

    def pod(self, name):
        listen, upstream = free_port(), free_port()
        # A pod registers once its service accepts connections.
        service = http.server.ThreadingHTTPServer(("127.0.0.1", upstream), http.server.BaseHTTPRequestHandler)
        threading.Thread(target=service.serve_forever, daemon=True).start()
        return self.run(name, f"""
[pod]
name = "{name}"
listen = "127.0.0.1:{listen}"
upstream = "127.0.0.1:{upstream}"
lease_ttl = "1h"
""")

    def run(self, name, sections):
        config = os.path.join(self.folder, f"{name}.toml")
        with open(config, "w", encoding="utf-8") as out:
            out.write(f'keyspace = "page"\n[store]\nendpoints = ["{self.etcd.url}"]\n{sections}')
        return Process(name, self.folder, [self.segue, "run", "--config", config])

    def explain(self, partition):
        return json.loads(self.admin.get(f"/v1/partitions/{partition}")[0])

    def at_rest(self, pods):
        keyspace = self.admin.keyspace()
        return (keyspace and not keyspace["handoffs"] and keyspace["unowned"] == 0 and len(keyspace["routers"]) == 2
                and all(pod["partitions"] > 0 for pod in keyspace["pods"])
                and {pod["name"] for pod in keyspace["pods"]} == set(pods))


class Operated(Cluster):
    """The same with two pods, and an endpoint that admits those with a token."""

    TOKEN = "correct-horse-battery-staple"

    def __init__(self, segue, folder):
        token = os.path.join(folder, "token")
        with open(token, "w", encoding="utf-8") as out:
            out.write(self.TOKEN)
        super().__init__(segue, folder, f'write = "token"\ntoken_file = "{token}"')
        self.pod("b")
        until(lambda: self.at_rest(["a", "b"]), "two pods at rest")

    def change(self, method, path, body=None):
        """Does what an operator does by another way than the page."""
        headers = {"authorization": f"Bearer {self.TOKEN}", "content-type": "application/json"}
        data = json.dumps(body or {}).encode()
        request = urllib.request.Request(f"{self.admin.url}{path}", data, headers, method=method)
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.read()


class Certified(Cluster):
    """The same with an endpoint by TLS, which admits those with a certificate."""

    def __init__(self, segue, folder):
        self.authority = Authority(os.path.join(folder, "tls"))
        super().__init__(segue, folder, self.authority.tls(), self.authority.path("ca.pem"))
        self.pod("b")
        until(lambda: self.at_rest(["a", "b"]), "two pods at rest")


class TwoKeyspaces(Cluster):
    """A coordinator of two keyspaces, and a pod in both."""

    TOKEN = Operated.TOKEN
    PARTITIONS = {"persons": 8, "orders": 12}

    def __init__(self, segue, folder):
        self.segue, self.folder, self.etcd = segue, folder, Etcd(folder)
        until(self.etcd.is_up, "etcd")
        port, token = free_port(), os.path.join(folder, "token")
        self.admin = Admin(port)
        with open(token, "w", encoding="utf-8") as out:
            out.write(self.TOKEN)
        self.run("coordinator", f"""
[coordinator]
name = "c-0"
lease_ttl = "5s"
settle = "50ms"
min_interval = "100ms"
[admin]
listen = "127.0.0.1:{port}"
write = "token"
token_file = "{token}"
""", with_partitions=True)
        self.pod("a")
        until(lambda: all(self.is_settled(name) for name in self.PARTITIONS), "both keyspaces at rest")

    def run(self, name, sections, with_partitions=False):
        partitions = "\npartitions = {}" if with_partitions else ""
        tables = [f'[[keyspaces]]\nname = "{keyspace}"{partitions.format(count)}\n'
                  for keyspace, count in self.PARTITIONS.items()]
        config = os.path.join(self.folder, f"{name}.toml")
        with open(config, "w", encoding="utf-8") as out:
            out.write(f'[store]\nendpoints = ["{self.etcd.url}"]\n{"".join(tables)}{sections}')
        return Process(name, self.folder, [self.segue, "run", "--config", config])

    def status(self, name):
        try:
            return json.loads(self.admin.get(f"/status?keyspace={name}")[0])["keyspace"]
        except OSError:
            return None

    def is_settled(self, name):
        status = self.status(name)
        return (status and not status["handoffs"] and status["unowned"] == 0
                and [pod["partitions"] for pod in status["pods"]] == [self.PARTITIONS[name]])


def call(etcd, path, body):
    """Asks etcd by its gateway for JSON."""
    request = urllib.request.Request(f"{etcd.url}/v3/{path}", json.dumps(body).encode(), method="POST")
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


class LargeKeyspace:
    """65,536 partitions of 12 pods, written straight to etcd, and a router that shows them."""

    PARTITIONS = 65_536
    PODS = 12
    ROOT = "/segue/large/"

    def __init__(self, segue, folder):
        self.etcd = Etcd(folder)
        until(self.etcd.is_up, "etcd")
        lease = call(self.etcd, "lease/grant", {"TTL": 600})["ID"]
        self.put([("config", {"partitions": self.PARTITIONS})])
        self.pods = [f"w-{number}" for number in range(self.PODS)]
        self.lives = {}
        for pod in self.pods:
            answer = self.put([(f"pods/{pod}", {"pod_name": pod, "address": "127.0.0.1:1"})], lease)
            self.lives[pod] = int(answer["header"]["revision"])
        self.epoch, self.owners = 1, {}
        for first in range(0, self.PARTITIONS, 128):
            self.assign({partition: self.pods[partition * 7 % self.PODS] for partition in range(first, first + 128)})
        port = free_port()
        self.admin = Admin(port)
        config = os.path.join(folder, "large.toml")
        with open(config, "w", encoding="utf-8") as out:
            out.write(f"""keyspace = "large"
[store]
endpoints = ["{self.etcd.url}"]
[router]
name = "r-0"
listen = "127.0.0.1:{free_port()}"
workers = 1
[router.partition]
header = "x-partition"
[admin]
listen = "127.0.0.1:{port}"
[log]
level = "debug"
""")
        self.process = Process("large", folder, [segue, "run", "--config", config])
        def is_read():
            keyspace = self.admin.keyspace()
            return keyspace and keyspace["partitions"] == self.PARTITIONS and keyspace["unowned"] == 0

        until(is_read, "all partitions in /status")

    def put(self, records, lease=0):
        encode = lambda text: base64.b64encode(text.encode()).decode()  # noqa: E731
        puts = [{"requestPut": {"key": encode(self.ROOT + key), "value": encode(json.dumps(value)), "lease": lease}}
                for key, value in records]
        return call(self.etcd, "kv/txn", {"success": puts})

    def assign(self, owners):
        self.epoch += 1
        self.owners |= owners
        self.put([(f"assignments/{partition}", {
            "partition": partition, "owner": pod, "incarnation": self.lives[pod], "epoch": self.epoch,
        }) for partition, pod in owners.items()])
