"""A stand-in for a load balancer of connections, such as a Service of Kubernetes."""

import asyncio
import itertools
import threading


class Front:
    """Passes each connection on to one of the backends that are ready, in turn. A connection stays where it is.

    `address_of`: returns the host and port of a backend, which says by `ready` whether it takes connections."""

    def __init__(self, address_of):
        self.address_of, self.backends, self.turn, self.connections = address_of, [], itertools.count(), set()
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
        backends = [backend for backend in self.backends if backend.ready]
        try:
            host, port = self.address_of(backends[next(self.turn) % len(backends)])
            there_reader, there_writer = await asyncio.open_connection(host, port)
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
