"""deploy/compose.yaml, brought up by the real docker-compose: partitions move under load, and every request gets its answer."""

import http.client
import os
import shutil
import subprocess
import threading
import time

from harness.ports import free_port
from harness.waiting import until
from images import make_image

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
FILE = os.path.join(ROOT, "deploy/compose.yaml")


def missing():
    """Returns what keeps the test from running here, or None."""
    for program in ("docker-compose", "docker", "etcd", "nginx"):
        if not shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin"):
            return f"there is no {program}"
    engine = subprocess.run(["docker", "info"], capture_output=True, check=False)
    return None if engine.returncode == 0 else "no Docker engine answers"


class Compose:
    def __init__(self, segue, folder):
        self.name = f"segue-test-{os.getpid()}"
        self.port, self.admin = free_port(), free_port()
        self.images = {name: f"segue-compose-{name}:test" for name in ("segue", "etcd", "nginx")}
        make_image(self.images["segue"], folder, [os.path.abspath(segue)], 'ENTRYPOINT ["segue"]')
        make_image(self.images["etcd"], folder, ["etcd"])
        make_image(self.images["nginx"], folder, ["nginx"])
        self.environment = {
            **os.environ, "SEGUE_IMAGE": self.images["segue"], "ETCD_IMAGE": self.images["etcd"],
            "SERVICE_IMAGE": self.images["nginx"], "HTTP_PORT": str(self.port), "ADMIN_PORT": str(self.admin),
        }

    def run(self, *arguments, check=True):
        command = ["docker-compose", "--project-name", self.name, "--file", FILE, *arguments]
        output = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=self.environment)
        assert not check or output.returncode == 0, f"{arguments}: {output.stdout}{output.stderr}"
        return output.stdout

    def operator(self, *arguments):
        return self.run("exec", "-T", "coordinator-0", "segue", *arguments, "--config", "/etc/segue/segue.toml")

    def remove(self):
        self.run("down", "--volumes", "--timeout", "5", check=False)
        subprocess.run(["docker", "rmi", "--force", *self.images.values()], capture_output=True, check=False)


class Load:
    """Clients that send a request after the other, each on one connection for as long as that lasts."""

    def __init__(self, port, clients=8):
        self.port, self.over = port, threading.Event()
        self.answered, self.failures = [0] * clients, []
        self.threads = [threading.Thread(target=self.send, args=(number,)) for number in range(clients)]
        for thread in self.threads:
            thread.start()

    def send(self, number):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        while not self.over.is_set():
            try:
                connection.request("POST", "/", b"x", {"x-key": f"{number}-{self.answered[number] % 97}"})
                response = connection.getresponse()
                body = response.read()
                if response.status != 200 or body != b"written\n":
                    self.failures.append((response.status, body))
                self.answered[number] += 1
            except (OSError, http.client.HTTPException) as error:
                self.failures.append(repr(error))
                connection.close()
            time.sleep(0.005)

    def end(self):
        self.over.set()
        for thread in self.threads:
            thread.join()


def moves_under_load(segue, folder):
    """Returns the number of requests."""
    compose = Compose(segue, folder)
    try:
        compose.run("up", "--detach")
        settled = ("wait", "settled", "--timeout", "60s")
        until(lambda: "writer-b" in compose.operator("status"), "the writers")
        compose.operator(*settled)
        load = Load(compose.port)
        try:
            until(lambda: sum(load.answered) > 200, "the first answers")
            compose.operator("drain", "writer-a")
            compose.operator("undrain", "writer-a")
            compose.run("stop", "sidecar-b")
            assert "writer-b" not in compose.operator("status")
            compose.run("start", "sidecar-b")
            until(lambda: "writer-b" in compose.operator("status"), "writer-b")
            compose.operator(*settled)
        finally:
            load.end()
        assert not load.failures, f"{len(load.failures)} of {sum(load.answered)} failed: {load.failures[:5]}"
        return sum(load.answered)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{compose.run('logs', '--tail', '10', check=False)}") from None
    finally:
        compose.remove()
