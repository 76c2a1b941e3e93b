"""Drives the real `segue` with clients, and through it servers, that nobody here wrote; prints a table.

`make foreign`, or `make foreign ARGS="--only websocket"` for the lines that have this in them; `ARGS=--long` adds those that
take minutes.
"""

import argparse
import asyncio
import logging
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.append(os.path.dirname(HERE))

import checks  # noqa: E402, F401: registers them
from backends import nginx  # noqa: E402
from clusters import Cluster  # noqa: E402
from harness.certificates import Authority  # noqa: E402
from harness.etcd import Etcd  # noqa: E402
from harness.ports import free_port  # noqa: E402
from harness.processes import Process, folder_of_processes  # noqa: E402
from table import run_all  # noqa: E402


class Fixture:
    """All clusters, each in front of one kind of service."""

    def __init__(self, segue, folder, long):
        self.folder, self.long = folder, long
        self.etcd = Etcd(folder)
        self.note = os.path.join(folder, "websockets.note")
        open(self.note, "w", encoding="utf-8").close()
        self.segue = segue

    async def start(self):
        def cluster(kind, upstreams, **settings):
            return Cluster(self.segue, self.folder, self.etcd, kind, upstreams, **settings)

        self.aiohttp = cluster("aiohttp", self.serve("aiohttp"), protocol="http1")
        self.direct = cluster("direct", self.serve("aiohttp"), protocol="http1", past_sidecar=True)
        self.grpc = cluster("grpc", self.serve("grpc"))
        # Servers of gRPC, with a sidecar between and without.
        self.silent = {}
        if self.long:
            servers = {"grpcio": self.serve("grpc"), "tonic": self.serve_by("tonic", self.tonic_service()),
                       "grpc-go": self.serve_by("grpc-go", self.go_service())}
            for name, ports in servers.items():
                self.silent[name] = cluster(f"silent-{name}", ports)
                self.silent[f"{name} without a sidecar"] = cluster(f"silent-{name}-direct", ports, past_sidecar=True)
        self.websockets = cluster("websockets", self.serve("websockets", self.note))
        ports = {(name, http2): free_port() for name in "ab" for http2 in (False, True)}
        command = nginx(self.folder, [(name, port, http2) for (name, http2), port in ports.items()])
        Process("nginx", self.folder, command)
        self.nginx1 = cluster("nginx1", {name: ports[name, False] for name in "ab"}, protocol="http1")
        self.nginx2 = cluster("nginx2", {name: ports[name, True] for name in "ab"}, protocol="http2")
        # Nobody serves there, so that everything is held.
        self.nobody = cluster("nobody", {}, router={"stash": {"max_wait": "2s"}})
        self.authority = Authority(os.path.join(self.folder, "tls"))
        browsed = {"partition": {"key": {"path": "/{key}"}}, "tls": self.authority.tls()}
        self.browsed = cluster("browsed", self.serve("browsed"), router=browsed)
        served = (self.aiohttp, self.direct, self.grpc, self.websockets, self.nginx1, self.nginx2, self.browsed)
        await asyncio.gather(*(one.ready() for one in (*served, *self.silent.values())))

    def serve(self, kind, *rest):
        return self.serve_by(kind, [sys.executable, os.path.join(HERE, "backends.py"), kind], *rest)

    def serve_by(self, kind, command, *rest):
        """Starts two services by this command, with a name and a port; returns their ports."""
        ports = {name: free_port() for name in "ab"}
        for name, port in ports.items():
            Process(f"{kind}-service-{name}", self.folder, [*command, name, str(port), *rest])
        return ports

    def tonic_service(self):
        return [os.path.join(os.path.dirname(self.segue), "examples/tonic-service")]

    def go_service(self):
        program = os.path.join(self.folder, "go-service")
        # Debian's packages of Go are for builds without modules.
        environment = {**os.environ, "GO111MODULE": "off", "GOPATH": "/usr/share/gocode"}
        subprocess.run(["go", "build", "-o", program, "."], cwd=os.path.join(HERE, "go_service"), env=environment, check=True)
        return [program]


async def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--segue", required=True, help="the binary")
    arguments.add_argument("--only", default="", help="run the checks whose line has this in it")
    arguments.add_argument("--long", action="store_true", help="also run the checks that take minutes")
    arguments = arguments.parse_args()
    # It reports each write to a peer that is gone, which some peers here are meant to be.
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    with folder_of_processes("foreign", shows_tails=bool) as folder:
        fixture = Fixture(arguments.segue, folder, arguments.long)
        await fixture.start()
        return await run_all(fixture, arguments.only, arguments.long)


if __name__ == "__main__":
    sys.exit(0 if asyncio.run(main()) else 1)
