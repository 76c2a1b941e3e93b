"""`POST /front/KEY` appends its body to the key's log and answers the position. `GET /front/KEY?after=N` has the
records after N."""

from aiohttp import web

import options
from log import Log

ARGUMENTS, WORK = options.parse()
LOG = Log(ARGUMENTS, WORK)


async def append(request):
    name = await request.text()
    return web.json_response({"position": await LOG.append(request.match_info["key"], request.headers, name)})


async def read(request):
    records = LOG.records(request.match_info["key"], int(request.query["after"]))
    return web.json_response([record["name"] for record in records])


app = web.Application()
app.router.add_post("/front/{key}", append)
app.router.add_get("/front/{key}", read)
options.serve(app, ARGUMENTS.port)
