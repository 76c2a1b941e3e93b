"""grpcio on both sides: the four kinds of call, metadata, errors, deadlines, cancellation, cutovers."""

import asyncio
import time
from contextlib import asynccontextmanager

import grpc

from clusters import DRAIN
from table import check

SERVER = "grpcio"
PARTITION = ("x-partition", "0")


@asynccontextmanager
async def channel_to(cluster):
    options = [("grpc.max_receive_message_length", 64 << 20), ("grpc.use_local_subchannel_pool", 1),
               # What fails must be seen, not sent again.
               ("grpc.enable_retries", 0)]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{cluster.port}", options=options) as channel:
        yield channel


def method(channel, kind, name):
    return getattr(channel, kind)(f"/foreign.Service/{name}")


async def unary(channel, body=b"x", name="Unary", timeout=30, **metadata):
    said = (PARTITION, *((f"x-{key}", value) for key, value in metadata.items()))
    call = method(channel, "unary_unary", name)(body, metadata=said, timeout=timeout)
    answer = await call
    return answer, dict(await call.initial_metadata()), dict(await call.trailing_metadata())


async def failure(call):
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error
    raise AssertionError("it has succeeded")


@check("gRPC", "grpcio", SERVER, "unary: metadata both ways, binary too, and what is left of its time")
async def unary_call(fixture):
    async with channel_to(fixture.grpc) as channel:
        answer, initial, trailing = await unary(channel, b"hello", say="hi", timeout=20)
        assert answer == b"hello" and initial["x-name"] in "ab", initial
        assert trailing["x-said"] == "hi" and trailing["x-raw-bin"] == b"\x00\xff", trailing
        assert 15 < float(trailing["x-left"]) < 20, trailing
        _, _, trailing = await unary(channel, timeout=None)
        assert trailing["x-left"] == "none", trailing


@check("gRPC", "grpcio", SERVER, "unary: 8 MiB there and back, empty, 200 at once")
async def sizes(fixture):
    async with channel_to(fixture.grpc) as channel:
        for size in (0, 1, 16_384, 8 << 20):
            answer, _, _ = await unary(channel, bytes(size))
            assert len(answer) == size
        answers = await asyncio.gather(*(unary(channel, b"%d" % number) for number in range(200)))
        assert [answer for answer, _, _ in answers] == [b"%d" % number for number in range(200)]


@check("gRPC", "grpcio", SERVER, "server, client and bidirectional streaming")
async def streaming(fixture):
    async def numbers(count):
        for number in range(count):
            yield b"%d" % number

    async with channel_to(fixture.grpc) as channel:
        down = method(channel, "unary_stream", "Down")(b"50", metadata=(PARTITION,))
        assert [answer async for answer in down] == [b"%d" % number for number in range(50)]
        up = await method(channel, "stream_unary", "Up")(numbers(100), metadata=(PARTITION,))
        assert up == b"190", up
        both = method(channel, "stream_stream", "Both")(metadata=(PARTITION,))
        for number in range(50):
            # Each waits for the one before, so nothing is held back on the way.
            await both.write(b"%d" % number)
            assert await asyncio.wait_for(both.read(), 10) == b"%d" % number
        await both.done_writing()
        assert await both.read() is grpc.aio.EOF
        assert await both.code() is grpc.StatusCode.OK


@check("gRPC", "grpcio", SERVER, "an error with its message and metadata; an unknown method")
async def errors(fixture):
    async with channel_to(fixture.grpc) as channel:
        error = await failure(unary(channel, name="Fail"))
        assert error.code() is grpc.StatusCode.NOT_FOUND and error.details() == "no such thing: ä 100%", error
        assert dict(error.trailing_metadata())["x-why"] == "because"
        error = await failure(unary(channel, name="Nothing"))
        assert error.code() is grpc.StatusCode.UNIMPLEMENTED, error


@check("gRPC", "grpcio", SERVER, "a deadline that passes at the pod; the next call goes on")
async def deadline(fixture):
    async with channel_to(fixture.grpc) as channel:
        begun = time.monotonic()
        error = await failure(unary(channel, timeout=0.3, delay="5"))
        assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED, error
        assert time.monotonic() - begun < 2
        await unary(channel)


@check("gRPC", "grpcio", SERVER, "a stream that its client cancels ends at the pod")
async def cancelled(fixture):
    async with channel_to(fixture.grpc) as channel:
        async def ends():
            return int((await unary(channel, name="Ends"))[0])

        before = await ends()
        call = method(channel, "stream_stream", "Endless")(metadata=(PARTITION,))
        await call.write(b"x")
        assert await call.read() == b"x"
        call.cancel()
        for _ in range(250):
            if await ends() == before + 1:
                return
            await asyncio.sleep(0.02)
        raise AssertionError("the pod goes on")


@check("gRPC", "grpcio", "nobody", "the router's own answers: UNAVAILABLE, INVALID_ARGUMENT, DEADLINE_EXCEEDED")
async def own_answers(fixture):
    async with channel_to(fixture.nobody) as channel:
        error = await failure(unary(channel))
        assert error.code() is grpc.StatusCode.UNAVAILABLE, error
        assert dict(error.trailing_metadata() or error.initial_metadata())["segue-reason"] == "no-owner", error
        error = await failure(method(channel, "unary_unary", "Unary")(b"", timeout=5))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT, error
        error = await failure(unary(channel, timeout=0.2))
        assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED, error


@check("gRPC", "grpcio", SERVER, "cutover: unary calls all the while, none fails")
async def unary_over_cutover(fixture):
    moved = asyncio.Event()
    names = set()

    async def keep_on(channel):
        while not moved.is_set():
            answer, initial, _ = await unary(channel, b"body")
            assert answer == b"body"
            names.add(initial["x-name"])

    async with channel_to(fixture.grpc) as channel:
        calling = [asyncio.create_task(keep_on(channel)) for _ in range(16)]
        await fixture.grpc.move()
        moved.set()
        await asyncio.gather(*calling)
    assert names == {"a", "b"}, names


@check("gRPC", "grpcio", SERVER, "cutover: streams that end within the drain end well")
async def streams_over_cutover(fixture):
    async with channel_to(fixture.grpc) as channel:
        down = method(channel, "unary_stream", "Down")(b"70", metadata=(PARTITION,))
        answers = [await anext(aiter(down))]
        moving = asyncio.create_task(fixture.grpc.move())
        answers += [answer async for answer in down]
        assert answers == [b"%d" % number for number in range(70)], answers
        assert await down.code() is grpc.StatusCode.OK
        await moving


@check("gRPC", "grpcio", SERVER, "cutover: a stream without end is INTERNAL at the drain's end; the next one works")
async def severed(fixture):
    async with channel_to(fixture.grpc) as channel:
        call = method(channel, "stream_stream", "Endless")(metadata=(PARTITION,))
        await call.write(b"x")
        assert await call.read() == b"x"
        begun = time.monotonic()
        moving = asyncio.create_task(fixture.grpc.move())
        error = await failure(call.read())
        took = time.monotonic() - begun
        # Not UNAVAILABLE: that is leave to send again.
        assert error.code() is grpc.StatusCode.INTERNAL, error
        assert DRAIN * 0.9 < took < DRAIN + 5, took
        await moving
        again = method(channel, "stream_stream", "Endless")(metadata=(PARTITION,))
        await again.write(b"y")
        assert await again.read() == b"y"
        again.cancel()


@check("gRPC", "grpcio", "grpcio, tonic, grpc-go", "calls and a stream that are silent for three minutes, while others begin",
       long=True)
async def silent(fixture):
    """grpcio and grpc-go end connections on which they are pinged while nothing else is sent, with all calls on them."""
    async def stays_silent(channel):
        answer, _, _ = await unary(channel, b"slow", timeout=210, delay="180")
        assert answer == b"slow", answer

    async def through(cluster):
        async with channel_to(cluster) as one, channel_to(cluster) as other:
            stream = method(one, "stream_stream", "Endless")(metadata=(PARTITION,))
            await stream.write(b"before")
            assert await stream.read() == b"before"
            calls = [asyncio.create_task(stays_silent(one))]
            await asyncio.sleep(10)
            calls.append(asyncio.create_task(stays_silent(other)))
            await asyncio.gather(*calls)
            await stream.write(b"after")
            assert await stream.read() == b"after"
            stream.cancel()

    names, clusters = zip(*fixture.silent.items())
    results = await asyncio.gather(*map(through, clusters), return_exceptions=True)
    failed = {name: repr(result) for name, result in zip(names, results) if result is not None}
    assert not failed, failed
