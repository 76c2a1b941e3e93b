"""The hook `drain` of a service whose work may outlast its exchange: it waits until no request of the partition is
worked on.

The library `websockets` closes a connection that has been severed while its handler still works on a message, and
aiohttp does the same with a request. To the sidecar the exchange is over then.
"""

import asyncio
import os

from aiohttp import web


def socket_of(folder, pod):
    return os.path.join(folder, f"{pod}.sock")


async def nothing(partition):
    """Does nothing more with a partition that has drained."""


async def serve(folder, pod, work, drained=nothing):
    """Serves the hook at the pod's socket for as long as the process lives. `drained` is awaited before it responds."""
    async def drain(request):
        partition = (await request.json())["partition"]
        while work.is_at(partition):
            await asyncio.sleep(0.005)
        await drained(partition)
        return web.Response()

    app = web.Application()
    app.router.add_post("/drain", drain)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.UnixSite(runner, socket_of(folder, pod)).start()
    return runner
