"""A gRPC service `world.Log` by grpcio, with JSON in its messages: `Append` of a record, and `Watch`, a stream without
end of the records after a position. The key is in the metadata `x-key`."""

import asyncio
import json
import signal

import grpc

import options
from log import Log

ARGUMENTS, WORK = options.parse()
LOG = Log(ARGUMENTS, WORK)


async def append(request, context):
    headers = dict(context.invocation_metadata())
    return {"position": await LOG.append(headers["x-key"], headers, request["name"])}


async def watch(request, context):
    key = dict(context.invocation_metadata())["x-key"]
    # So that the stream has begun, and a move need not wait for its response.
    await context.send_initial_metadata(())
    position = request["after"]
    while True:
        for record in LOG.records(key, position):
            position += 1
            yield {"name": record["name"], "position": position}
        await asyncio.sleep(0.1)


async def main():
    def from_json(message):
        return json.dumps(message).encode()

    server = grpc.aio.server()
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("world.Log", {
        "Append": grpc.unary_unary_rpc_method_handler(append, json.loads, from_json),
        "Watch": grpc.unary_stream_rpc_method_handler(watch, json.loads, from_json),
    })])
    server.add_insecure_port(f"127.0.0.1:{ARGUMENTS.port}")
    await server.start()
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    await ended.wait()
    await server.stop(1)


asyncio.run(main())
