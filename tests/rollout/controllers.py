"""Stand-ins for the controllers of workloads and for a Service: rolling updates, and connections to the pods that are ready."""

import asyncio
import itertools
import threading

from kubelet import Pod

# How late a node learns that an endpoint is gone.
LAG = 3.0


class StatefulSet:
    """Updates one pod after the other, from the last to the first, each under the name that it had."""

    def __init__(self, host, manifest, replicas):
        self.host, self.name, self.revision = host, manifest["metadata"]["name"], 1
        self.pods = [self.make(manifest, ordinal).start() for ordinal in range(replicas)]

    def make(self, manifest, ordinal):
        labels = {"controller-revision-hash": f"{self.name}-{self.revision}"}
        return Pod(self.host, f"{self.name}-{ordinal}", manifest["spec"]["template"], labels)

    def update(self, manifest, first=None):
        """`first`: the container of the old pods whose end begins before that of the others. Returns the pods that have ended."""
        self.revision += 1
        old = list(self.pods)
        for ordinal in reversed(range(len(old))):
            old[ordinal].end(first)
            self.pods[ordinal] = self.make(manifest, ordinal).start()
            self.pods[ordinal].until_ready()
        return old


class Deployment:
    """Starts a new pod before it ends an old one: `maxSurge: 1` and `maxUnavailable: 0`."""

    def __init__(self, host, manifest, service=None):
        assert manifest["spec"]["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
        self.host, self.name, self.service = host, manifest["metadata"]["name"], service
        self.made = itertools.count()
        self.pods = [self.make(manifest) for _ in range(manifest["spec"]["replicas"])]

    def make(self, manifest):
        pod = Pod(self.host, f"{self.name}-{next(self.made)}", manifest["spec"]["template"], {}).start()
        if self.service:
            self.service.pods.append(pod)
        return pod

    def update(self, manifest):
        """Returns the pods that have ended."""
        old, self.pods, threads = self.pods, [], []
        for pod in old:
            self.pods.append(self.make(manifest))
            self.pods[-1].until_ready()
            threads.append(threading.Thread(target=self.end, args=(pod,)))
            threads[-1].start()
        for thread in threads:
            thread.join()
        return old

    def end(self, pod):
        if self.service:
            threading.Timer(LAG, self.service.pods.remove, [pod]).start()
        pod.end()


class Service:
    """Passes each connection on to one of the pods that are ready, in turn. A connection stays where it is."""

    def __init__(self, port):
        self.target, self.pods, self.turn, self.connections = port, [], itertools.count(), set()
        self.loop, started = asyncio.new_event_loop(), threading.Event()

        async def listen():
            server = await asyncio.start_server(self.connect, "127.0.0.1", 0)
            self.port = server.sockets[0].getsockname()[1]
            started.set()

        self.loop.create_task(listen())
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        started.wait()

    async def connect(self, reader, writer):
        # The loop itself refers to its tasks only weakly.
        self.connections.add(asyncio.current_task())
        pods = [pod for pod in self.pods if pod.ready]
        try:
            pod = pods[next(self.turn) % len(pods)]
            there_reader, there_writer = await asyncio.open_connection(pod.ip, self.target)
            await asyncio.gather(self.pass_on(reader, there_writer), self.pass_on(there_reader, writer))
        except (OSError, ZeroDivisionError):
            # To the client it looks like a connection that no endpoint accepts.
            writer.transport.abort()
        finally:
            self.connections.discard(asyncio.current_task())

    async def pass_on(self, reader, writer):
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
            writer.write_eof()
        except OSError:
            writer.transport.abort()
