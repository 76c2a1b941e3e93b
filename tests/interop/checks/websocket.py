"""The `websockets` library on both sides."""

import asyncio
import os

from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from clusters import DRAIN
from harness.web import metrics
from table import check

SERVER = "websockets"


def open_to(cluster, **options):
    url = f"ws://127.0.0.1:{cluster.port}/chat"
    headers = {"x-partition": "0"}
    return connect(url, additional_headers=headers, subprotocols=["chat"], max_size=32 << 20, proxy=None, **options)


def in_flight(cluster):
    return metrics(f"http://127.0.0.1:{cluster.admin}/metrics", "segue_requests_in_flight")


async def noted(fixture, line):
    """Waits until the service has noted this end of a connection."""
    for _ in range(500):
        with open(fixture.note, encoding="utf-8") as note:
            lines = note.read().splitlines()
        if any(line in one for one in lines):
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"{line!r} is not among {lines}")


@check("WebSocket", "websockets", SERVER, "text, bytes, a subprotocol; it counts as in flight")
async def echo(fixture):
    async with open_to(fixture.websockets) as socket:
        assert (await socket.recv()).split()[1] == "chat"
        for message in ("hällo", b"\x00\xff", "", "x" * 125, "x" * 126, "x" * 65_536):
            await socket.send(message)
            assert await socket.recv() == message
        assert await asyncio.to_thread(in_flight, fixture.websockets) == 1
    for _ in range(250):
        if await asyncio.to_thread(in_flight, fixture.websockets) == 0:
            break
        await asyncio.sleep(0.02)
    else:
        raise AssertionError("it still counts")


@check("WebSocket", "websockets", SERVER, "ping and pong from either side")
async def ping(fixture):
    async with open_to(fixture.websockets) as socket:
        await socket.recv()
        await asyncio.wait_for(await socket.ping(b"here"), 10)
        await socket.send("ping me")
        assert await socket.recv() == "pong"


@check("WebSocket", "websockets", SERVER, "fragmented and large messages")
async def fragments(fixture):
    async with open_to(fixture.websockets) as socket:
        await socket.recv()
        await socket.send(iter(["one ", "two ", "three"]))
        assert await socket.recv() == "one two three"
        data = os.urandom(8 << 20)
        sending = asyncio.create_task(socket.send(data))
        assert await socket.recv() == data
        await sending


@check("WebSocket", "websockets", SERVER, "close codes pass both ways")
async def close(fixture):
    async with open_to(fixture.websockets) as socket:
        await socket.recv()
        await socket.send("close me")
        await asyncio.wait_for(socket.wait_closed(), 10)
        assert (socket.close_code, socket.close_reason) == (4001, "as you wish"), socket.close_code
    async with open_to(fixture.websockets) as socket:
        await socket.recv()
        await socket.close(4002, "enough")
    await noted(fixture, "4002 enough")


@check("WebSocket", "websockets", SERVER, "without a partition it is refused before it is one")
async def refused(fixture):
    try:
        async with connect(f"ws://127.0.0.1:{fixture.websockets.port}/", proxy=None):
            raise AssertionError("it was opened")
    except InvalidStatus as refusal:
        assert refusal.response.status_code == 400, refusal


@check("WebSocket", "websockets", SERVER, "cutover: 1012 to the client, 1001 to the service, at the drain's end; then the new owner")
async def cutover(fixture):
    async with open_to(fixture.websockets) as busy, open_to(fixture.websockets) as idle:
        old = (await busy.recv()).split()[0]
        await idle.recv()
        echoed = 0

        async def talk():
            nonlocal echoed
            while True:
                await busy.send(b"x" * 50_000)
                assert await busy.recv() == b"x" * 50_000
                echoed += 1

        talking = asyncio.create_task(talk())
        await asyncio.sleep(0.2)
        begun = asyncio.get_running_loop().time()
        moving = asyncio.create_task(fixture.websockets.move())
        for socket, task in ((busy, talking), (idle, asyncio.create_task(idle.recv()))):
            try:
                await asyncio.wait_for(task, 20)
                raise AssertionError("it goes on")
            except ConnectionClosed:
                pass
            assert socket.close_code == 1012, (socket.close_code, socket.close_reason)
        took = asyncio.get_running_loop().time() - begun
        assert DRAIN * 0.9 < took < DRAIN + 5, took
        assert echoed > 0
        await moving
    await noted(fixture, f"{old} 1001")
    async with open_to(fixture.websockets) as socket:
        assert (await socket.recv()).split()[0] != old


@check("WebSocket", "websockets", SERVER, "cutover in the middle of a large frame: the frame ends, or the close is not clean")
async def cutover_in_frame(fixture):
    async with open_to(fixture.websockets, max_queue=1) as socket:
        await socket.recv()
        data = os.urandom(16 << 20)
        await socket.send(data)
        # It reads nothing for now, so the frame back is half-way when the drain ends.
        moving = asyncio.create_task(fixture.websockets.move())
        await asyncio.sleep(DRAIN + 0.3)
        try:
            assert await socket.recv() == data
            await socket.recv()
            raise AssertionError("it goes on")
        except ConnectionClosed:
            assert socket.close_code in (1012, 1006), socket.close_code
        await moving
