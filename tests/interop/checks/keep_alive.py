"""Python's own http.client, aiohttp and plain sockets: many requests on a connection, and slow peers."""

import asyncio
import http.client

import aiohttp

from backends import BIG
from table import check


@check("HTTP/1.1", "http.client", "aiohttp, HTTP/1.1", "300 requests on one connection, over a cutover")
async def one_connection(fixture):
    names = set()
    moved = asyncio.Event()

    def ask(connection):
        connection.request("POST", "/slow?s=0", body=b"12345", headers={"x-partition": "0"})
        answer = connection.getresponse()
        assert answer.status == 200 and answer.read() == b"12345", answer.status
        connection.request("GET", "/", headers={"x-partition": "0"})
        names.add(connection.getresponse().read())

    async def run():
        connection = http.client.HTTPConnection("127.0.0.1", fixture.aiohttp.port, timeout=30)
        await asyncio.to_thread(connection.connect)
        socket, asked = connection.sock, 0
        while not moved.is_set() or asked < 150:
            await asyncio.to_thread(ask, connection)
            asked += 1
        assert connection.sock is socket, "it was made anew"
        connection.close()

    running = asyncio.create_task(run())
    await fixture.aiohttp.move()
    moved.set()
    await running
    assert names == {b"a", b"b"}, names


@check("HTTP/1.1", "aiohttp", "aiohttp, HTTP/1.1", "64 connections at once, over a cutover: none fails")
async def many_connections(fixture):
    moved = asyncio.Event()
    url = f"http://127.0.0.1:{fixture.aiohttp.port}"
    connector = aiohttp.TCPConnector(limit=64)
    async with aiohttp.ClientSession(connector=connector, headers={"x-partition": "0"}) as session:
        async def ask(number):
            asked = 0
            while not moved.is_set():
                body = b"%d-%d" % (number, asked)
                async with session.post(f"{url}/echo", data=body) as answer:
                    assert answer.status == 200 and await answer.read() == body, answer.status
                asked += 1
            return asked

        asking = [asyncio.create_task(ask(number)) for number in range(64)]
        await fixture.aiohttp.move()
        moved.set()
        assert all(asked > 0 for asked in await asyncio.gather(*asking))


@check("HTTP/1.1", "socket", "aiohttp, HTTP/1.1", "20 pipelined requests are answered in their order")
async def pipelined(fixture):
    reader, writer = await asyncio.open_connection("127.0.0.1", fixture.aiohttp.port)
    for number in range(20):
        # The first ones take longest.
        path = f"/slow?s={0.2 if number < 2 else 0}"
        body = b"%02d" % number
        writer.write(f"POST {path} HTTP/1.1\r\nhost: h\r\nx-partition: 0\r\ncontent-length: 2\r\n\r\n".encode() + body)
    for number in range(20):
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        assert b"content-length: 2\r\n" in head.lower(), head
        assert await reader.readexactly(2) == b"%02d" % number
    writer.close()


@check("HTTP/1.0", "socket", "aiohttp, HTTP/1.1", "an answer of unknown length ends with its connection")
async def until_close(fixture):
    reader, writer = await asyncio.open_connection("127.0.0.1", fixture.aiohttp.port)
    writer.write(b"GET /drip?n=5 HTTP/1.0\r\nx-partition: 0\r\n\r\n")
    answer = await reader.read()
    assert answer.startswith(b"HTTP/1.0 200") and answer.endswith(b"\r\n\r\n0\n1\n2\n3\n4\n"), answer
    writer.close()


@check("HTTP/1.1", "socket", "aiohttp, HTTP/1.1", "a client that reads slowly: 64 MiB arrive, the router keeps less than 8 of them")
async def slow_reader(fixture):
    cluster = fixture.aiohttp
    before = cluster.router.resident()
    reader, writer = await asyncio.open_connection("127.0.0.1", cluster.port, limit=1 << 16)
    writer.write(b"GET /big HTTP/1.1\r\nhost: h\r\nx-partition: 0\r\n\r\n")
    await reader.readuntil(b"\r\n\r\n")
    await asyncio.sleep(1.5)
    most, read = cluster.router.resident() - before, 0
    while read < BIG:
        part = await reader.read(1 << 20)
        assert part, f"cut off after {read}"
        if read >> 23 != (read + len(part)) >> 23:
            most = max(most, cluster.router.resident() - before)
        read += len(part)
    assert most < 8 << 20, f"{most >> 10} KiB more"
    writer.close()


@check("HTTP/1.1", "socket", "aiohttp, HTTP/1.1", "a client that sends 32 MiB to a pod that reads late: as much")
async def slow_pod(fixture):
    cluster = fixture.aiohttp
    before = cluster.router.resident()
    reader, writer = await asyncio.open_connection("127.0.0.1", cluster.port)
    size = 32 << 20
    writer.write(f"POST /early HTTP/1.1\r\nhost: h\r\nx-partition: 0\r\ncontent-length: {size}\r\n\r\n".encode())
    most, part = 0, bytes(1 << 16)
    for number in range(size >> 16):
        writer.write(part)
        await writer.drain()
        if number % 64 == 0:
            most = max(most, cluster.router.resident() - before)
    answer = b""
    while not answer.endswith(b"0\r\n\r\n"):
        answer += await reader.read(1 << 16)
    assert str(size).encode() in answer and most < 8 << 20, (answer, most >> 10)
    writer.close()


@check("HTTP/1.1", "socket", "aiohttp, HTTP/1.1", "a body that comes byte by byte")
async def slow_writer(fixture):
    reader, writer = await asyncio.open_connection("127.0.0.1", fixture.aiohttp.port)
    writer.write(b"POST /echo HTTP/1.1\r\nhost: h\r\nx-partition: 0\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n")
    for byte in b"slowly":
        for piece in (b"1\r", b"\n" + bytes([byte]), b"\r\n"):
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.01)
    writer.write(b"0\r\n\r\n")
    answer = await reader.read()
    assert answer.startswith(b"HTTP/1.1 200") and answer.endswith(b"slowly"), answer
    writer.close()
