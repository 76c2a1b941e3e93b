"""A WebSocket at /ws/KEY by the library `websockets`: each message is a record to append, and its answer the
position."""

import asyncio
import json
import signal

import websockets
from websockets.asyncio.server import serve

import drain_hook
import options
from log import Log

ARGUMENTS, WORK = options.parse()
LOG = Log(ARGUMENTS, WORK)


async def converse(connection):
    key = connection.request.path.removeprefix("/ws/")
    try:
        async for name in connection:
            position = await LOG.append(key, connection.request.headers, name)
            await connection.send(json.dumps({"name": name, "position": position}))
    except websockets.ConnectionClosed:
        pass


async def main():
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    await drain_hook.serve(ARGUMENTS.folder, ARGUMENTS.name, WORK)
    async with serve(converse, "127.0.0.1", ARGUMENTS.port):
        await ended.wait()


asyncio.run(main())
