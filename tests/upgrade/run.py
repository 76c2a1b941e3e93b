"""Upgrades and downgrades of a site under a checked load: routers, coordinators and pods are replaced one by one, in every order of
roles, by those of the working tree, and back by those of the commit that `baseline` names, the oldest that speaks the protocol's
version. No request is lost, and no write is harmed.

Half of the pods are sidecars before a service that stays, the others link the library. Each router is taken out of what stands in
front of both before it ends, as a load balancer does.

`make upgrade`; with one order of roles, `make upgrade ARGS=--short`; with a mistake that has to be found:
`make upgrade ARGS="--short --sabotage killed-pods"`.
"""

import argparse
import itertools
import os
import shutil
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.normpath(os.path.join(HERE, "..", ".."))
sys.path.append(os.path.dirname(HERE))

from harness.etcd import Etcd  # noqa: E402
from harness.front import Front  # noqa: E402
from harness.load import Load  # noqa: E402
from harness.ports import free_port  # noqa: E402
from harness.processes import Process, folder_of_processes  # noqa: E402
from harness.segue import QUICK, Segue, at  # noqa: E402
from harness.waiting import until  # noqa: E402
from harness.web import accepts, is_up  # noqa: E402

KEYSPACE = "orders"
PARTITIONS = 64
ROLES = ("routers", "coordinators", "pods")
# The service behind a sidecar, which is written on that of an example.
SERVICE = os.path.join(ROOT, "tests/rollout/service.py")
os.environ["PYTHONPATH"] = os.path.join(ROOT, "examples/python-writer")


class Build:
    """The programs of one commit."""

    def __init__(self, name, folder):
        self.name = name
        self.segue, self.writer = os.path.join(folder, "segue"), os.path.join(folder, "examples", "writer")


def build_baseline(cargo, target):
    """Builds the commit that `baseline` names, unless that was done before."""
    with open(os.path.join(HERE, "baseline"), encoding="utf-8") as file:
        commit = file.read().split()[0]
    folder = os.path.join(target, "upgrade", commit)
    build = Build(commit, folder)
    if os.path.exists(build.writer):
        return build
    print(f"building {commit}, which takes some minutes", flush=True)
    source, built = os.path.join(folder, "source"), os.path.join(target, "upgrade", "build")
    archive = subprocess.run(["git", "-C", ROOT, "archive", commit], stdout=subprocess.PIPE, check=False)
    if archive.returncode != 0:
        sys.exit(f"upgrade: tests/upgrade/baseline names commit {commit}, which this clone does not have; `git fetch --unshallow` "
                 "brings it")
    shutil.rmtree(source, ignore_errors=True)
    os.makedirs(source)
    subprocess.run(["tar", "-x", "-C", source], input=archive.stdout, check=True)
    subprocess.run([cargo, "build", "--locked", "--bin", "segue", "--example", "writer", "--target-dir", built], cwd=source, check=True)
    os.makedirs(os.path.dirname(build.writer), exist_ok=True)
    shutil.copy2(os.path.join(built, "debug", "segue"), build.segue)
    shutil.copy2(os.path.join(built, "debug", "examples", "writer"), build.writer)
    return build


class Member:
    """A process that is replaced. `run` starts it, given a build."""

    def __init__(self, site, name, admin=None, address=None):
        self.site, self.name, self.admin, self.address = site, name, admin, address
        self.ready = False

    def start(self, build):
        self.process = self.run(build)
        ready = f"http://{at(self.admin)}/ready" if self.admin else None
        until(lambda: is_up(ready) if ready else accepts(self.address[1]), f"{self.name} of {build.name}")
        self.ready = True

    def replace(self, build, end):
        self.ready = False
        end(self.process)
        self.start(build)
        self.site.move_in(f"{self.name} being of {build.name}")


class Coordinator(Member):
    def run(self, build):
        coordinator = {"name": self.name, "partitions": PARTITIONS, **QUICK}
        return self.site.run(build, self.name, {"admin": {"listen": at(self.admin)}, "coordinator": coordinator})


class Router(Member):
    def run(self, build):
        router = {"name": self.name, "listen": at(self.address[1]), "partition": {"header": "x-partition"}}
        return self.site.run(build, self.name, {"admin": {"listen": at(self.admin)}, "router": router})


class Sidecar(Member):
    def __init__(self, site, name):
        super().__init__(site, name, free_port(), ("127.0.0.1", free_port()))
        self.upstream = free_port()
        Process(f"{name}-service", site.folder, [
            sys.executable, SERVICE, "--listen", at(self.upstream), "--keyspace", KEYSPACE, "--name", name, "--log", site.log])
        until(lambda: accepts(self.upstream), f"the service behind {name}")

    def run(self, build):
        pod = {"name": self.name, "listen": at(self.address[1]), "upstream": at(self.upstream)}
        return self.site.run(build, self.name, {"admin": {"listen": at(self.admin)}, "pod": pod})


class Writer(Member):
    def __init__(self, site, name):
        super().__init__(site, name, address=("127.0.0.1", free_port()))

    def run(self, build):
        return Process(self.name, self.site.folder, [
            build.writer, "--name", self.name, "--listen", at(self.address[1]), "--log-dir", self.site.log,
            "--keyspace", KEYSPACE, "--etcd", self.site.etcd.url])


class Site:
    def __init__(self, folder):
        self.folder, self.log = folder, os.path.join(folder, "log")
        os.makedirs(self.log)
        self.etcd, self.front = Etcd(folder), Front(lambda router: router.address)

    def run(self, build, name, sections):
        return Segue(build.segue, self.folder, self.etcd, KEYSPACE).run(name, sections)

    def start(self, old, new):
        self.operator = Segue(new.segue, self.folder, self.etcd, KEYSPACE)
        self.members = {
            "coordinators": [Coordinator(self, f"coordinator-{n}", free_port()) for n in range(2)],
            "routers": [Router(self, f"router-{n}", free_port(), ("127.0.0.1", free_port())) for n in range(2)],
            "pods": [kind(self, f"{kind.__name__.lower()}-{n}") for n in range(2) for kind in (Sidecar, Writer)],
        }
        self.front.backends += self.members["routers"]
        for members in self.members.values():
            for member in members:
                member.start(old)
        until(self.settled, "the first placement")

    def move_in(self, mixture):
        """Waits until all partitions have their owners, and moves one to each pod in turn."""
        until(self.settled, f"all partitions with their owners, {mixture}")
        for pod in self.members["pods"]:
            # The life of a pod that was killed goes on for the time of its lease.
            until(lambda: self.operator.operate("move", "0", "--to", pod.name).returncode == 0, f"a move to {pod.name}, {mixture}")

    def settled(self):
        status = self.operator.status()
        return (status and status["partitions"] == PARTITIONS and status["unowned"] == 0 and not status["handoffs"]
                and len(status["pods"]) == len(self.members["pods"]) and all(pod["partitions"] > 0 for pod in status["pods"]))


def ended(process):
    """Ends a process as an operator does, and waits for it."""
    process.end()
    code = process.process.wait(60)
    assert code == 0, f"{process.name} ended with {code}:\n{process.tail()}"


def play(site, arguments, old, new):
    """Returns whether nothing was lost."""
    site.start(old, new)
    load = Load(new.segue, site.front.port, PARTITIONS, site.log, site.folder)
    orders = list(itertools.permutations(ROLES))[:1 if arguments.short else None]
    try:
        until(load.has_written, "the first writes of the load")
        for order in orders:
            for build, way in ((new, "up"), (old, "down")):
                began = time.monotonic()
                for role in order:
                    end = Process.kill if arguments.sabotage and role == "pods" else ended
                    for member in site.members[role]:
                        member.replace(build, end)
                print(f"{way}: {', '.join(order)} | {time.monotonic() - began:.1f}s", flush=True)
    except BaseException:
        load.kill()
        raise
    requests, texts, harm = load.end()
    for text in texts:
        print(f"    {text}")
    print(f"upgrade: orders={len(orders)} requests={requests} harm={harm}")
    return harm == 0


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--target", required=True, help="the folder of builds, with those of the working tree in `debug`")
    arguments.add_argument("--short", action="store_true", help="one order of roles")
    arguments.add_argument("--sabotage", choices=["killed-pods"], help="make this mistake")
    arguments = arguments.parse_args()
    target = os.path.abspath(arguments.target)
    old, new = build_baseline(os.environ.get("CARGO", "cargo"), target), Build("the working tree", os.path.join(target, "debug"))
    with folder_of_processes("upgrade", shows_tails=lambda failed: failed) as folder:
        return play(Site(folder), arguments, old, new)


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
