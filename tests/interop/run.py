"""Drives the real `segue` with clients, and through it servers, that nobody here wrote; prints a table.

`make foreign`, or `make foreign ARGS="--only websocket"` for the lines that have this in them; `ARGS=--long` adds those that
take minutes. With `ARGS="--http1-server segue"` routers serve HTTP/1.1 themselves.
"""

import argparse
import asyncio
import logging
import os
import signal
import sys
import tempfile

import checks  # noqa: F401: registers them
from backends import nginx
from processes import Cluster, Etcd, Process, free_port, until
from table import run_all

HERE = os.path.dirname(os.path.abspath(__file__))


class Fixture:
    """All clusters, each in front of one kind of service."""

    def __init__(self, segue, folder, long):
        self.folder, self.long = folder, long
        self.etcd = Etcd(folder)
        self.note = os.path.join(folder, "websockets.note")
        open(self.note, "w", encoding="utf-8").close()
        self.segue = segue

    async def start(self):
        await until(self.etcd.is_up, "etcd")

        def cluster(kind, upstreams, **settings):
            return Cluster(self.segue, self.folder, self.etcd, kind, upstreams, **settings)

        self.aiohttp = cluster("aiohttp", self.serve("aiohttp"), protocol="http1")
        self.direct = cluster("direct", self.serve("aiohttp"), protocol="http1", past_sidecar=True)
        self.grpc = cluster("grpc", self.serve("grpc"))
        # The same without a sidecar between.
        self.grpc_direct = cluster("grpc-direct", self.serve("grpc"), past_sidecar=True) if self.long else None
        self.websockets = cluster("websockets", self.serve("websockets", self.note))
        ports = {(name, http2): free_port() for name in "ab" for http2 in (False, True)}
        command = nginx(self.folder, [(name, port, http2) for (name, http2), port in ports.items()])
        Process("nginx", self.folder, command)
        self.nginx1 = cluster("nginx1", {name: ports[name, False] for name in "ab"}, protocol="http1")
        self.nginx2 = cluster("nginx2", {name: ports[name, True] for name in "ab"}, protocol="http2")
        # Nobody serves there, so that everything is held.
        self.nobody = cluster("nobody", {}, limits='[router.stash]\nmax_wait = "2s"')
        served = (self.aiohttp, self.direct, self.grpc, self.websockets, self.nginx1, self.nginx2)
        await asyncio.gather(*(one.ready() for one in served), *([self.grpc_direct.ready()] if self.long else []))

    def serve(self, kind, *rest):
        ports = {name: free_port() for name in "ab"}
        for name, port in ports.items():
            command = [sys.executable, os.path.join(HERE, "backends.py"), kind, name, str(port), *rest]
            Process(f"{kind}-service-{name}", self.folder, command)
        return ports


async def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--segue", required=True, help="the binary")
    arguments.add_argument("--only", default="", help="run the checks whose line has this in it")
    arguments.add_argument("--long", action="store_true", help="also run the checks that take minutes")
    arguments.add_argument("--http1-server", choices=("hyper", "segue"), default=Cluster.http1_server,
                           help="the routers' `http1_server`")
    arguments = arguments.parse_args()
    Cluster.http1_server = arguments.http1_server
    # It reports each write to a peer that is gone, which some peers here are meant to be.
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    # So that what was started is ended.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="segue-foreign-") as folder:
        fixture = Fixture(arguments.segue, folder, arguments.long)
        try:
            await fixture.start()
            return await run_all(fixture, arguments.only, arguments.long)
        finally:
            for process in Process.started:
                process.kill()


if __name__ == "__main__":
    sys.exit(0 if asyncio.run(main()) else 1)
