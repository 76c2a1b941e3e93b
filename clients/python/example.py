"""A counter for each partition, in a folder that all pods share: `example.py COORDINATOR KEYSPACE NAME ADDRESS FOLDER`, with hypercorn
or any other server of ASGI. `curl -X POST -H 'x-partition: 7' 127.0.0.1:8080` counts, through a router."""

import asyncio
import pathlib
import sys

from hypercorn.asyncio import serve
from hypercorn.config import Config
from segue_pod import Membership

coordinator, keyspace, name, address, folder = sys.argv[1:]
counts = {}


class Counters:
    async def warm(self, part):  # the old owner, if there is one, still counts
        file = pathlib.Path(folder, str(part.partition))
        counts[part.partition] = int(file.read_text()) if file.exists() else 0

    async def sync(self, part):  # the old owner has stopped
        await self.warm(part)

    async def leaving(self, part):
        """No response goes on that would have to be ended."""

    async def drain(self, part):
        """Nothing is written after its request."""

    async def release(self, part):
        counts.pop(part.partition, None)


async def count(scope, receive, send):
    owned = scope["segue"]  # other requests have got 421
    value = counts[owned.partition] + 1
    if owned.may_write():  # otherwise the response becomes a 500
        file = pathlib.Path(folder, f"{owned.partition}.new")
        file.write_text(str(value))
        file.rename(file.with_suffix(""))
        counts[owned.partition] = value
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": str(value).encode()})


membership = Membership(Counters(), coordinators=[coordinator], keyspace=keyspace, name=name, address=address)
asyncio.run(serve(membership.asgi(count), Config.from_mapping(bind=address), shutdown_trigger=membership.take_part))
