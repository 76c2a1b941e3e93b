"""A TCP forwarder whose connections can all be broken at once, as by a load balancer that restarts."""

import asyncio
import contextlib


class Breaker:
    def __init__(self, port, target):
        self.port, self.target = port, target
        self.connections = set()

    async def start(self):
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", self.port)
        return self

    @property
    def address(self):
        return f"127.0.0.1:{self.port}"

    def break_all(self):
        for stream in self.connections:
            stream.transport.abort()

    async def serve(self, reader, writer):
        # A task of a server that is cancelled prints it.
        with contextlib.suppress(OSError, asyncio.CancelledError):
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.target)
            await asyncio.gather(self.pump(reader, far_writer), self.pump(far_reader, writer))
        writer.transport.abort()

    async def pump(self, reader, writer):
        self.connections.add(writer)
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            self.connections.discard(writer)
            writer.close()
