"""InfluxDB 1.6, as Debian packages it (`influxdb`). Its storage admits one process, and knows no partitions: each partition has an
`influxd` of its own, with its storage in the folder that all pods share. It starts with the partition's first request, and ends in
the hook `drain`, before the next owner starts one at the same storage. Those of a pod that is killed die with it.

A second one at the same storage would be noticed: each holds a lock of the kernel on it.
"""

import asyncio
import ctypes
import fcntl
import json
import os
import signal
import time

import aiohttp
from aiohttp import web

import drain_hook
import options

ARGUMENTS, WORK = options.parse()
FOLDER = os.path.join(ARGUMENTS.folder, "databases")
LIBC = ctypes.CDLL(None)
PR_SET_PDEATHSIG = 1
# Seconds in which one has to come up.
START = 30
databases = {}  # by partition: the task that starts its `influxd`


class Database:
    """A running `influxd`, and a session with it."""

    async def start(self, partition):
        storage = os.path.join(FOLDER, str(partition))
        os.makedirs(storage, exist_ok=True)
        own = os.path.join(ARGUMENTS.folder, f"{ARGUMENTS.name}-{partition}")
        lock = os.open(os.path.join(storage, "lock"), os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.process = await asyncio.create_subprocess_exec(
                "influxd", "-config", self.configure(own, storage), pass_fds=(lock,), stderr=asyncio.subprocess.DEVNULL,
                preexec_fn=lambda: LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL),
            )
        finally:
            # The child holds it from now on.
            os.close(lock)
        self.session = aiohttp.ClientSession(connector=aiohttp.UnixConnector(f"{own}.influxd", limit=0))
        deadline = time.monotonic() + START
        while not await self.answers():
            if self.process.returncode is not None or time.monotonic() > deadline:
                raise OSError(f"influxd of partition {partition} has not come up: {self.process.returncode}")
            await asyncio.sleep(0.01)
        return self

    def configure(self, own, storage):
        def at(name):
            return json.dumps(os.path.join(storage, name))

        with open(f"{own}.toml", "w", encoding="utf-8") as out:
            out.write(f"""
reporting-disabled = true
bind-address = "127.0.0.1:0"
meta = {{ dir = {at("meta")} }}
data = {{ dir = {at("data")}, wal-dir = {at("wal")}, query-log-enabled = false }}
http = {{ bind-address = "127.0.0.1:0", unix-socket-enabled = true, bind-socket = {json.dumps(f"{own}.influxd")}, log-enabled = false }}
monitor = {{ store-enabled = false }}
logging = {{ level = "error", suppress-logo = true }}
""")
        return f"{own}.toml"

    async def answers(self):
        try:
            async with self.session.get("http://influxd/ping") as response:
                return response.status == 204
        except aiohttp.ClientError:
            return False

    async def end(self):
        await self.session.close()
        self.process.terminate()
        await self.process.wait()


async def forward(request):
    partition = int(request.headers["segue-partition"])
    with WORK.on(request.query["db"], request.headers):
        if partition not in databases:
            databases[partition] = asyncio.create_task(Database().start(partition))
        starting = databases[partition]
        try:
            database = await asyncio.shield(starting)
            url, body = f"http://influxd/{request.match_info['call']}", await request.read()
            head = {"content-type": request.content_type}
            async with database.session.post(url, params=request.query, data=body, headers=head) as response:
                head = {"content-type": response.headers.get("content-type", "text/plain")}
                return web.Response(status=response.status, body=await response.read(), headers=head)
        except (OSError, aiohttp.ClientError) as error:
            if starting.done() and starting.exception():
                databases.pop(partition, None)
            return web.Response(status=500, text=repr(error))


async def close(partition):
    """Ends the `influxd` of a partition that has drained."""
    if partition in databases:
        await (await databases.pop(partition)).end()


async def live(_):
    """Serves the hook for as long as the application lives."""
    os.makedirs(FOLDER, exist_ok=True)
    hook = await drain_hook.serve(ARGUMENTS.folder, ARGUMENTS.name, WORK, close)
    yield
    await hook.cleanup()
    await asyncio.gather(*(close(partition) for partition in list(databases)))


app = web.Application()
app.router.add_post("/influxdb/{call}", forward)
app.cleanup_ctx.append(live)
options.serve(app, ARGUMENTS.port)
