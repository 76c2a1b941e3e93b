"""The coordinator that a pod talks to, and the acknowledgements that are due to it."""

import asyncio
import pathlib

import grpc

from .proto import pb

# Raised by a call whose stream, channel or server is gone.
BROKEN = (grpc.aio.AioRpcError, grpc.aio.UsageError, asyncio.InvalidStateError, TimeoutError)

# The most acknowledgements that one call may carry.
MAX_ACKS = 4096


def describe(error):
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return repr(error)


def is_over(error):
    """Says whether an error of a call means that the registration is over."""
    return isinstance(error, grpc.aio.AioRpcError) and error.code() == grpc.StatusCode.NOT_FOUND


class Coordinator:
    """The coordinator of the current stream, and the token of the registration."""

    def __init__(self, token_file, credentials):
        self.token_file, self.credentials = token_file, credentials
        self.resume = b""
        self.stub = None

    def channel(self, target):
        options = [("grpc.keepalive_time_ms", 10_000), ("grpc.keepalive_timeout_ms", 10_000)]
        if target.startswith("unix:"):
            # Otherwise grpcio sends the path as the authority, which is not a valid one.
            options.append(("grpc.default_authority", "localhost"))
        if self.credentials is None:
            return grpc.aio.insecure_channel(target, options=options)
        return grpc.aio.secure_channel(target, self.credentials, options=options)

    def metadata(self):
        """Returns what each call presents. The token is read anew, because it may have been replaced."""
        if self.token_file is None:
            return ()
        return (("authorization", "Bearer " + pathlib.Path(self.token_file).read_text().strip()),)

    async def call(self, name, request, timeout):
        if self.stub is None:
            raise asyncio.InvalidStateError("no stream yet")
        try:
            return await getattr(self.stub, name)(request, timeout=timeout, metadata=self.metadata())
        except asyncio.CancelledError:
            if asyncio.current_task().cancelling():
                raise
            # grpcio raises CancelledError if the channel is closed during a call.
            raise asyncio.InvalidStateError("the channel was closed") from None


class Acks:
    """Acknowledgements, each of which is sent to any coordinator until it gets a response."""

    def __init__(self, coordinator):
        self.coordinator = coordinator
        self.unsent = {}
        self.due = asyncio.Event()

    def add(self, ack):
        self.unsent[ack.id.partition, ack.id.handoff, ack.kind] = ack
        self.due.set()

    def clear(self):
        self.unsent.clear()

    async def send_all(self):
        while True:
            await self.due.wait()
            self.due.clear()
            due = list(self.unsent.items())
            batches = [due[begin : begin + MAX_ACKS] for begin in range(0, len(due), MAX_ACKS)]
            # What is too early must not keep the others from their turn.
            again = [await self.send(batch) for batch in batches]
            if any(again):
                self.due.set()
                await asyncio.sleep(0.1)

    async def send(self, batch):
        """Sends acknowledgements once. Returns whether some have to be sent again."""
        request = pb.AckRequest(resume=self.coordinator.resume, acks=[ack for _, ack in batch])
        try:
            outcomes = (await self.coordinator.call("Ack", request, timeout=5)).outcomes
        except BROKEN:
            return True
        for (key, ack), outcome in zip(batch, outcomes):
            if outcome != pb.AGAIN and self.unsent.get(key) is ack:
                del self.unsent[key]
        return pb.AGAIN in outcomes
