"""What the page shows: a demo in one process, a cluster of processes, and a keyspace of 65,536 partitions."""

import base64
import http.server
import json
import os
import sys
import threading
import time
import urllib.request

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "interop"))
from processes import Etcd, Process, free_port  # noqa: E402: the same processes as `make foreign` has

PATIENCE = 60.0


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

    def __init__(self, port):
        self.url = f"http://127.0.0.1:{port}"

    def get(self, path, timeout=5):
        with urllib.request.urlopen(f"{self.url}{path}", timeout=timeout) as response:
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
    """A coordinator, two routers and pods behind sidecars, each a process of its own."""

    def __init__(self, segue, folder):
        self.segue, self.folder, self.etcd = segue, folder, Etcd(folder)
        until(self.etcd.is_up, "etcd")
        port = free_port()
        self.admin = Admin(port)
        self.run("coordinator", f"""
[coordinator]
name = "c-0"
partitions = 16
lease_ttl = "5s"
settle = "50ms"
min_interval = "100ms"
listen = "127.0.0.1:0"
[admin]
listen = "127.0.0.1:{port}"
""")
        self.routers = {name: self.run(name, f"""
[router]
name = "{name}"
listen = "127.0.0.1:{free_port()}"
lease_ttl = "60s"
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
""")

    def run(self, name, sections):
        config = os.path.join(self.folder, f"{name}.toml")
        with open(config, "w", encoding="utf-8") as out:
            out.write(f'keyspace = "page"\n[store]\nendpoints = ["{self.etcd.url}"]\n{sections}')
        return Process(name, self.folder, [self.segue, "run", "--config", config])

    def at_rest(self, pods):
        keyspace = self.admin.keyspace()
        return (keyspace and not keyspace["handoffs"] and keyspace["unowned"] == 0 and len(keyspace["routers"]) == 2
                and all(pod["partitions"] > 0 for pod in keyspace["pods"])
                and {pod["name"] for pod in keyspace["pods"]} == set(pods))


class LargeKeyspace:
    """65,536 partitions of 12 pods, written straight to etcd, and a router that shows them."""

    PARTITIONS = 65_536
    PODS = 12
    ROOT = "/segue/large/"

    def __init__(self, segue, folder):
        self.etcd = Etcd(folder)
        until(self.etcd.is_up, "etcd")
        lease = self.call("lease/grant", {"TTL": 600})["ID"]
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

    def call(self, path, body):
        request = urllib.request.Request(f"{self.etcd.url}/v3/{path}", json.dumps(body).encode(), method="POST")
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def put(self, records, lease=0):
        encode = lambda text: base64.b64encode(text.encode()).decode()  # noqa: E731
        puts = [{"requestPut": {"key": encode(self.ROOT + key), "value": encode(json.dumps(value)), "lease": lease}}
                for key, value in records]
        return self.call("kv/txn", {"success": puts})

    def assign(self, owners):
        self.epoch += 1
        self.owners |= owners
        self.put([(f"assignments/{partition}", {
            "partition": partition, "owner": pod, "incarnation": self.lives[pod], "epoch": self.epoch,
        }) for partition, pod in owners.items()])
