"""A receiver of Prometheus' remote write: `POST /receive/TENANT`. Each sample becomes a line of the tenant's file. The
samples are read from the message itself: snappy, and in it the protobuf message `WriteRequest`."""

import os
import struct

import cramjam
from aiohttp import web

import options
import work

ARGUMENTS, WORK = options.parse()
FOLDER = os.path.join(ARGUMENTS.folder, "samples")
os.makedirs(FOLDER, exist_ok=True)


def varint(message, at):
    value = shift = 0
    while True:
        byte = message[at]
        at, value, shift = at + 1, value | (byte & 0x7F) << shift, shift + 7
        if byte < 0x80:
            return value, at


def fields(message):
    """Yields the numbers and values of a protobuf message's fields."""
    at = 0
    while at < len(message):
        tag, at = varint(message, at)
        if tag & 7 == 0:
            value, at = varint(message, at)
        elif tag & 7 == 1:
            value, at = struct.unpack_from("<d", message, at)[0], at + 8
        elif tag & 7 == 2:
            length, at = varint(message, at)
            value, at = message[at:at + length], at + length
        else:
            raise ValueError(f"wire type {tag & 7}")
        yield tag >> 3, value


def samples(message):
    """Yields the name, the time and the value of each sample of a `WriteRequest`."""
    for number, series in fields(message):
        if number != 1:
            continue
        labels = [dict(fields(value)) for part, value in fields(series) if part == 1]
        name = next(label[2].decode() for label in labels if label[1] == b"__name__")
        for part, value in fields(series):
            if part == 2:
                sample = dict(fields(value))
                yield name, sample[2], sample.get(1, 0.0)


async def receive(request):
    tenant = request.match_info["tenant"]
    message = bytes(cramjam.snappy.decompress_raw(await request.read()))
    with WORK.on(tenant, request.headers):
        for name, at, value in samples(message):
            work.append(os.path.join(FOLDER, tenant), {"name": name, "at": at, "value": value, "pod": ARGUMENTS.name})
    return web.Response(status=204)


app = web.Application()
app.router.add_post("/receive/{tenant}", receive)
options.serve(app, ARGUMENTS.port)
