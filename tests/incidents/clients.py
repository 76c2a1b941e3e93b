"""Clients that each ask for keys, one request at a time, until they are ended: `clients.py CLIENTS PER_SECOND KEYS PORT…`.

`PER_SECOND` is each client's rate. `KEYS` is how many keys they draw from, or `=KEY` for a single one. Clients are spread over the
ports. One whose request fails connects again.
"""

import asyncio
import random
import sys

TIMEOUT = 60


async def ask(streams, port, key):
    """Asks once, and returns the connection if it can be used again."""
    reader, writer = streams or await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET /orders/{key} HTTP/1.1\r\nhost: orders\r\n\r\n".encode())
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    length = next(int(line.split(":")[1]) for line in head.split("\r\n") if line.startswith("content-length:"))
    await reader.readexactly(length)
    if "connection: close" in head:
        writer.close()
        return None
    return reader, writer


async def client(port, interval, key):
    streams, loop = None, asyncio.get_running_loop()
    await asyncio.sleep(random.random() * interval)
    while True:
        began = loop.time()
        try:
            streams = await asyncio.wait_for(ask(streams, port, key()), TIMEOUT)
        except (OSError, EOFError, TimeoutError, asyncio.IncompleteReadError, asyncio.TimeoutError):
            streams = None
        await asyncio.sleep(max(0.0, interval - (loop.time() - began)))


async def main(clients, per_second, keys, *ports):
    key = (lambda: keys[1:]) if keys.startswith("=") else (lambda: random.randrange(int(keys)))
    await asyncio.gather(*(client(int(ports[number % len(ports)]), 1 / float(per_second), key) for number in range(int(clients))))


asyncio.run(main(*sys.argv[1:]))
