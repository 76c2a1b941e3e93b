"""A TCP forwarder whose connections can all be broken at once, as by a load balancer that restarts."""

import asyncio
import contextlib


class Breaker:
    def __init__(self, port, target):
        self.port, self.target = port, target
        self.connections, self.tasks = set(), set()

    async def start(self):
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", self.port)
        return self

    @property
    def address(self):
        return f"127.0.0.1:{self.port}"

    def break_all(self):
        for stream in self.connections:
            stream.transport.abort()

    async def close(self):
        self.server.close()
        # Connections that have been accepted get their task now.
        await asyncio.sleep(0)
        # Also those whose far side is not connected yet, which `break_all` does not know.
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    async def serve(self, reader, writer):
        self.tasks.add(asyncio.current_task())
        asyncio.current_task().add_done_callback(self.tasks.discard)
        try:
            # The end of the forwarder is no error of a connection.
            with contextlib.suppress(OSError, asyncio.CancelledError):
                far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.target)
                await asyncio.gather(self.pump(reader, far_writer), self.pump(far_reader, writer))
        finally:
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
