"""A small site of real processes, each with an admin endpoint, and what a test does with them."""

import http.client
import http.server
import json
import os
import signal
import threading
import time

from harness.certificates import self_signed
from harness.etcd import Etcd
from harness.ports import free_port
from harness.processes import Process
from harness.segue import ANYWHERE, QUICK, Segue, at
from harness.waiting import until
from harness.web import is_up

PARTITIONS = 8


class Service:
    """A writer behind a sidecar: `/slow` takes 20 s, `/broken` ends in the middle of its response, all requests can be made to
    fail, and the hook `warm` to fail for good or to go on for ever."""

    def __init__(self):
        self.port, self.refuses, self.warms_for_ever, self.fails = free_port(), False, False, False
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
                failed = service.fails and self.path == "/"
                self.send_response(409 if refused else 202 if warming else 500 if failed else 200)
                broken = self.path == "/broken"
                self.send_header("content-length", str(len(body) + broken))
                self.end_headers()
                self.wfile.write(body)
                self.close_connection |= broken

            def log_message(self, *_):
                pass

        class Server(http.server.ThreadingHTTPServer):
            def handle_error(self, *_):
                """Peers that are gone are part of the test."""

        server = Server(("127.0.0.1", self.port), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()


class Site(Segue):
    """etcd, a coordinator, two routers of which one serves TLS, and two sidecars, under a light load."""

    def __init__(self, segue, folder):
        super().__init__(segue, folder, Etcd(folder), "site")
        self.ports, self.configs, self.processes, self.services, self.pods = {}, {}, {}, {}, {}
        self.router, self.secure, self.stranger_port = free_port(), free_port(), free_port()
        self.loading = threading.Event()
        self.loading.set()
        self.add("coordinator", {"coordinator": {
            "partitions": PARTITIONS, "lease_ttl": "3s", "settle_max": "1s", "phase_timeout": "3s", "listen": ANYWHERE,
        } | QUICK})
        cert, key = self_signed(folder, days=5)
        tls = {"tls": {"cert": cert, "key": key}, "hot_restart_socket": os.path.join(folder, "hot-restart.sock")}
        # The second lease is long, so that a router that is stopped is waited for.
        for name, listen, lease, more in (("router", self.router, "6s", {}), ("router-tls", self.secure, "60s", tls)):
            self.add(name, {"router": {
                "name": name, "listen": at(listen), "lease_ttl": lease, "workers": 1, "partition": {"header": "x-partition"},
                "stash": {"max_wait": "4s"}, "drain": {"timeout": "2s", "on_timeout": "sever"},
            } | more})
        for name in ("a", "b"):
            upstream, self.pods[name] = self.service(name), at(free_port())
            self.add(name, {"pod": {
                "name": name, "listen": self.pods[name], "upstream": upstream, "lease_ttl": "5s",
                "hooks": {hook: {"url": f"http://{upstream}/{hook}"} for hook in ("warm", "sync")},
            }})
        self.settle()
        for partition in range(PARTITIONS):
            threading.Thread(target=self.load, args=(partition,), daemon=True).start()

    def service(self, name):
        self.services[name] = Service()
        return at(self.services[name].port)

    def add(self, name, sections):
        self.ports[name] = free_port()
        self.configs[name] = self.configure(name, sections | {"admin": {"listen": at(self.ports[name])}})
        self.begin(name)

    def begin(self, name, *before):
        """Starts a process, by the command `before` if there is one."""
        command = [*before, self.program, "run", "--config", self.configs[name]]
        self.processes[name] = Process(name, self.folder, command)

    def end_process(self, name):
        self.processes[name].end()
        self.processes[name].process.wait(30)

    def stranger(self):
        """Starts a coordinator of another keyspace."""
        return self.run("stranger", {"keyspace": "other", "coordinator": {"name": "stranger"},
                                     "admin": {"listen": at(self.stranger_port)}})

    def pid(self, name):
        return self.processes[name].process.pid

    def settle(self):
        def settled():
            status = self.status()
            return (status.get("leader") and len(status["pods"]) == 2 and len(status["routers"]) == 2
                    and not status["handoffs"] and not status["unowned"]
                    and all(is_up(f"http://127.0.0.1:{port}/ready") for port in self.ports.values()) and status)
        return until(settled, "a settled site")

    def move(self, partition, pod, refusal=None):
        """Asks for a move and does not wait for it. `refusal`: what the pod may have answered by then."""
        asked = self.operate("move", str(partition), "--to", pod, "--no-wait")
        # 4: the coordinator has not answered within half a minute, and will find the order.
        assert asked.returncode in (0, 4) or (refusal and refusal in asked.stderr), asked.stderr

    def other_owner(self, partition):
        """Returns the pod that does not own the partition."""
        explained = self.operate("explain", str(partition), "--json")
        assert explained.returncode == 0, f"partition {partition} is not explained: {explained.stderr}"
        return "b" if json.loads(explained.stdout)["owner"] == "a" else "a"

    def post(self, partition, path="/", timeout=30):
        connection = http.client.HTTPConnection("127.0.0.1", self.router, timeout=timeout)
        try:
            connection.request("POST", path, b"{}", {"x-partition": str(partition)})
            response = connection.getresponse()
            response.read()
            return response.status
        finally:
            connection.close()

    def load(self, partition):
        while self.loading.is_set():
            try:
                self.post(partition)
            except (OSError, http.client.HTTPException):
                pass
            time.sleep(0.1)

    def signal(self, name, number):
        os.kill(self.pid(name), number)

    def end(self):
        self.loading.clear()
        # A stopped process is not ended by SIGTERM.
        self.signal("router-tls", signal.SIGCONT)
