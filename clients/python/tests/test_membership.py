"""Tests of a membership with a coordinator in the same process."""

import asyncio
import contextlib
import pathlib
import socket
import subprocess
import tempfile
import unittest

import grpc

from segue_pod import Callbacks, Membership
from segue_pod.proto import pb
from test_tasks import Service

# How long a test waits for what has to happen.
PATIENCE = 60


class Coordinator:
    """Answers the first heartbeat of each stream as the test says."""

    def __init__(self, respond):
        self.respond = respond
        self.hellos = asyncio.Queue()
        self.tokens = []
        self.acks = asyncio.Queue()

    async def register(self, heartbeats, context):
        first = await anext(aiter(heartbeats))
        self.tokens.append(dict(context.invocation_metadata()).get("authorization"))
        self.hellos.put_nowait(first.hello)
        async for event in self.respond(first.hello, context):
            yield event
        await asyncio.Event().wait()

    async def ack(self, request, context):
        for ack in request.acks:
            self.acks.put_nowait(ack)
        return pb.AckResponse(outcomes=[pb.ACCEPTED] * len(request.acks))

    async def leave(self, request, context):
        return pb.LeaveResponse(empty=True)

    @contextlib.asynccontextmanager
    async def serve(self, credentials=None):
        server = grpc.aio.server()
        messages = lambda request: {"request_deserializer": request.FromString, "response_serializer": lambda it: it.SerializeToString()}  # noqa: E731
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("segue.v1.Pods", {
            "Register": grpc.stream_stream_rpc_method_handler(self.register, **messages(pb.Heartbeat)),
            "Ack": grpc.unary_unary_rpc_method_handler(self.ack, **messages(pb.AckRequest)),
            "Leave": grpc.unary_unary_rpc_method_handler(self.leave, **messages(pb.LeaveRequest)),
        })])
        at = "localhost:0"
        port = server.add_secure_port(at, credentials) if credentials else server.add_insecure_port(at)
        await server.start()
        try:
            yield f"localhost:{port}"
        finally:
            await server.stop(None)

    async def next(self, queue):
        return await asyncio.wait_for(queue.get(), PATIENCE)


def welcome(**fields):
    span = {"seconds": 60}
    return pb.Welcome(incarnation=7, resume=b"secret", lease_ttl={"seconds": 90}, trust=span, heartbeat_every=span, **fields)


async def registers(hello, context):
    yield pb.Event(seq=1, confirmed=1, welcome=welcome(), assignment=pb.Assignment(full=True))


@contextlib.asynccontextmanager
async def running(pod):
    task = asyncio.create_task(pod.run())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def membership(*coordinators, service=None, **settings):
    settings = {"keyspace": "default", "name": "a", "address": "127.0.0.1:1"} | settings
    return Membership(service or Service(), coordinators=coordinators, **settings)


class Registrations(unittest.IsolatedAsyncioTestCase):
    async def test_heartbeats_report_the_keys_of_partitions_and_outlive_a_report_that_fails(self):
        class Counts(Callbacks):
            def keys(self):
                return {3: 40}

        class Fails(Callbacks):
            def keys(self):
                raise OSError("no disk")

        self.assertEqual(dict(membership(service=Counts()).first_heartbeat().load.keys), {3: 40})
        for service in (Fails(), Service()):
            self.assertFalse(membership(service=service).first_heartbeat().HasField("load"))

    async def test_a_pod_claims_what_its_service_can(self):
        class Able(Callbacks):
            async def sync(self, part):
                pass

        for service, fence, claimed, warms in (
            (Service(), True, ["drained", "released", "fence"], True),
            (Able(), False, ["drained", "released", "sync"], False),
        ):
            hello = membership("127.0.0.1:1", service=service, fence=fence).hello
            self.assertEqual((list(hello.capabilities), hello.nothing_to_warm), (claimed, not warms))

    async def test_a_stream_that_breaks_is_resumed_with_the_token_and_what_the_pod_holds(self):
        async def breaks(hello, context):
            yield pb.Event(seq=1, confirmed=1, welcome=welcome(resumed=bool(hello.resume)), tasks=[
                pb.Task(id=pb.TaskId(partition=3, handoff=8), epoch=9, warm=pb.Warm()),
            ])
            if not hello.resume:
                await coordinator.next(coordinator.acks)
                await context.abort(grpc.StatusCode.UNAVAILABLE, "restarts")

        coordinator = Coordinator(breaks)
        async with coordinator.serve() as at:
            pod = membership(at, name="writer-0", zone="z", lease_ttl=90)
            async with running(pod):
                first, second = [await coordinator.next(coordinator.hellos) for _ in range(2)]
        self.assertEqual((first.pod, first.zone, first.lease_ttl.seconds, first.resume), ("writer-0", "z", 90, b""))
        self.assertEqual((second.resume, [(it.partition, it.epoch) for it in second.holdings]), (b"secret", [(3, 9)]))

    async def test_a_registration_that_is_over_stops_all_requests_and_the_next_one_has_no_token(self):
        async def ends(hello, context):
            yield pb.Event(seq=1, confirmed=1, welcome=welcome(), assignment=pb.Assignment(full=True, owned=[pb.Owned(partition=0, epoch=5)]))
            if len(coordinator.tokens) == 1:
                await pod.ownership.until(lambda: pod.ownership.epochs)
                await context.abort(grpc.StatusCode.NOT_FOUND, "over")

        coordinator = Coordinator(ends)
        async with coordinator.serve() as at:
            pod = membership(at)
            ended = asyncio.Event()
            pod.tasks.end_life = lambda: ended.set() if pod.ownership.epochs == {} else None
            async with running(pod):
                tokens = [(await coordinator.next(coordinator.hellos)).resume for _ in range(2)]
        self.assertEqual((ended.is_set(), tokens), (True, [b"", b""]))

    async def test_a_pod_that_is_cancelled_as_its_stream_ends_does_not_go_on(self):
        async def follow(stub):
            followed.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                raise TimeoutError from None  # as grpcio does now and then, which tells of the stream alone

        pod, followed = membership("127.0.0.1:1"), asyncio.Event()
        pod.follow = follow
        task = asyncio.create_task(pod.run())
        await followed.wait()
        task.cancel()
        done, _ = await asyncio.wait([task], timeout=5)
        task.cancel()
        self.assertTrue(done and task.cancelled())

    async def test_a_pod_leaves_once(self):
        coordinator = Coordinator(registers)
        async with coordinator.serve() as at:
            pod = membership(at)
            async with running(pod):
                await coordinator.next(coordinator.hellos)
                self.assertTrue(await pod.leave(within=PATIENCE))

    async def test_each_call_presents_the_token_that_the_file_has_then(self):
        async def breaks(hello, context):
            file.write_text("two\n")
            await context.abort(grpc.StatusCode.UNAVAILABLE, "restarts")
            yield

        coordinator = Coordinator(breaks)
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "token"
            file.write_text("one\n")
            async with coordinator.serve() as at, running(membership(at, token_file=file)):
                for _ in range(2):
                    await coordinator.next(coordinator.hellos)
        self.assertEqual(coordinator.tokens[:2], ["Bearer one", "Bearer two"])

    async def test_a_pod_with_credentials_registers_by_tls(self):
        with tempfile.TemporaryDirectory() as folder:
            key, certificate = pathlib.Path(folder) / "key", pathlib.Path(folder) / "certificate"
            subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj",
                            "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", certificate],
                           check=True, capture_output=True)
            pair = key.read_bytes(), certificate.read_bytes()
        coordinator = Coordinator(registers)
        async with coordinator.serve(grpc.ssl_server_credentials([pair])) as at:
            pod = membership(at, credentials=grpc.ssl_channel_credentials(pair[1]))
            async with running(pod):
                await coordinator.next(coordinator.hellos)
                await asyncio.wait_for(pod.ownership.until(lambda: pod.ownership.incarnation == 7), PATIENCE)

    async def test_a_coordinator_that_never_responds_is_left_for_the_next_one(self):
        reached = asyncio.Event()

        def accepted(_, stream):
            stream.close()
            reached.set()

        # The kernel takes connections to it, and nobody accepts them.
        with socket.create_server(("127.0.0.1", 0)) as hung:
            async with await asyncio.start_server(accepted, "127.0.0.1", 0) as other:
                pod = membership(*(f"127.0.0.1:{it.getsockname()[1]}" for it in (hung, other.sockets[0])), lease_ttl=3)
                async with running(pod):
                    await asyncio.wait_for(reached.wait(), 10)  # of itself, grpcio waits for 20 s


if __name__ == "__main__":
    unittest.main()
