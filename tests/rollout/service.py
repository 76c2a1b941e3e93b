"""The service behind a sidecar: the writer of `examples/python-writer`, which here does nothing to take part in handoffs.

It listens on the loopback, reads a partition's log before its first request of an epoch, and ends at SIGTERM like a service that
knows nothing of a drain. Its log is a folder that all pods share; in production that would be Kafka or a database.
"""

import argparse
import asyncio
import contextlib
import signal
import socket
import types

from writer import Http, Log, Writer

# Long enough for each end of a pod to find requests in progress.
SERVICE_TIME = 0.01


class BehindSidecar:
    """What a membership is to a pod that takes part by itself. The sidecar refuses what is not this pod's."""

    def __init__(self, keyspace, name):
        self.keyspace, self.name = keyspace, name

    @contextlib.asynccontextmanager
    async def admit(self, headers):
        stamps = dict(headers)
        if stamps.get("segue-keyspace") != self.keyspace:
            yield None
            return
        partition, epoch = int(stamps["segue-partition"]), int(stamps["segue-epoch"])
        yield types.SimpleNamespace(partition=partition, epoch=epoch, incarnation=0, may_write=lambda: True)


class Stateful(Writer):
    async def enter(self, partition, epoch):
        if (partition, epoch) not in self.states:
            state = self.state()
            # Suspends nowhere, so two first requests cannot both read.
            state.apply(*await self.log.read(partition, 0))
            self.states[partition, epoch] = state
        return self.states[partition, epoch]


class WithHealth(Http):
    async def handle(self, method, path, headers, body):
        if path == "/healthz":
            return "200 OK", {}, b"ok\n"
        return await super().handle(method, path, headers, body)


async def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--listen", required=True)
    arguments.add_argument("--keyspace", required=True)
    arguments.add_argument("--log", required=True, help="the folder that all pods share")
    arguments.add_argument("--name", default=socket.gethostname(), help="the pod's name")
    arguments = arguments.parse_args()
    host, port = arguments.listen.rsplit(":", 1)
    http = WithHealth(BehindSidecar(arguments.keyspace, arguments.name), Stateful(Log(arguments.log), 0), SERVICE_TIME)
    await asyncio.start_server(http.serve, host, int(port))
    terminated = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, terminated.set)
    await terminated.wait()


if __name__ == "__main__":
    asyncio.run(main())
