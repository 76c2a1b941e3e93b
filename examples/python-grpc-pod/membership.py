"""Takes part in Segue's handoffs through the gRPC service of its coordinators.

`Membership` keeps the stream open, runs the service's callbacks for tasks, and decides which requests may be accepted. It is
independent of HTTP and of the service's state, so other services can copy it unchanged.

Invariants:

* A request is accepted only at the epoch that the pod owns, and only while the lease clock runs.
* A request writes only in the life (the incarnation) that accepted it: others may have owned its partition in between.
* The lease clock counts from when a confirmed heartbeat was *sent*, by a clock that counts suspended time.
* The token stays in this process. A restarted process is a new incarnation.
"""

import asyncio
import collections
import contextlib
import importlib
import itertools
import logging
import pathlib
import sys
import tempfile
import time

import grpc

log = logging.getLogger("pod")


def load_stubs(folder):
    """Generates the client from segue/v1/pods.proto below `folder`, and imports it."""
    from grpc_tools import protoc

    with tempfile.TemporaryDirectory() as out:
        well_known = pathlib.Path(protoc.__file__).parent / "_proto"
        arguments = [f"-I{folder}", f"-I{well_known}", f"--python_out={out}", f"--grpc_python_out={out}"]
        if protoc.main(["protoc", *arguments, "segue/v1/pods.proto"]) != 0:
            raise SystemExit(f"cannot compile {folder}/segue/v1/pods.proto")
        sys.path.insert(0, out)
        try:
            return importlib.import_module("segue.v1.pods_pb2"), importlib.import_module("segue.v1.pods_pb2_grpc")
        finally:
            sys.path.remove(out)


# Raised by a call whose stream, channel or server is gone.
BROKEN = (grpc.aio.AioRpcError, grpc.aio.UsageError, asyncio.InvalidStateError, asyncio.TimeoutError)


# The most acknowledgements that one call may carry.
MAX_ACKS = 4096


def lease_now():
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def describe(error):
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return repr(error)


def seconds(span):
    return span.seconds + span.nanos / 1e9


class Membership:
    """A pod's part in the keyspace.

    `service` has the coroutines `warm(partition, epoch, from_address)`, `sync(partition)`, `drain(partition)` and
    `release(partition)`. A service that makes checkpoints also has `checkpoint(partition, epoch)`, which returns the name of one,
    and its `warm` takes the name of the newest as `checkpoint`, or "".
    """

    def __init__(self, stubs, coordinators, keyspace, name, address, lease_ttl, service, token_file=None):
        self.pb, self.rpc = stubs
        self.targets = itertools.cycle(coordinators)
        self.keyspace, self.name, self.address, self.lease_ttl = keyspace, name, address, lease_ttl
        self.service = service
        self.token_file = token_file
        self.makes_checkpoints = hasattr(service, "checkpoint")
        self.incarnation = 0
        self.resume = b""
        self.owned = {}  # partition: epoch
        self.held = {}  # partition: the epoch of the state that the pod has
        self.in_flight = {}  # partition: number of requests in progress
        self.trusted_until = self.stands_until = 0.0
        self.trust, self.ttl = lease_ttl * 2 / 3, lease_ttl
        self.running = {}  # partition: (kind, handoff, task)
        self.ending = set()  # tasks that end, and those that free what they have copied
        self.locks = collections.defaultdict(asyncio.Lock)  # partition: held while one of its tasks runs
        self.acks = {}
        self.acks_due = asyncio.Event()
        self.changed = asyncio.Condition()
        self.stub = None
        self.leaving = self.left = False

    # Requests.

    @contextlib.asynccontextmanager
    async def request(self, partition, epoch):
        """Yields the life in which a request is accepted, otherwise None. It counts as in flight until the block ends."""
        if self.owned.get(partition, 0) < epoch:
            # The router may learn of the ownership before the pod does.
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.until(lambda: self.owned.get(partition, 0) >= epoch), 0.25)
        if self.owned.get(partition) != epoch or lease_now() >= self.trusted_until:
            yield None
            return
        self.in_flight[partition] = self.in_flight.get(partition, 0) + 1
        try:
            yield self.incarnation
        finally:
            self.in_flight[partition] -= 1
            await self.notify()

    def may_write(self, life):
        """Says whether what a request that was accepted in this life writes now takes effect before its lease can have
        ended."""
        return life == self.incarnation and lease_now() < self.stands_until

    def fence(self):
        """Stops all requests: the registration is over."""
        self.owned.clear()
        self.trusted_until = self.stands_until = 0.0

    async def until(self, holds):
        async with self.changed:
            await self.changed.wait_for(holds)

    async def notify(self):
        async with self.changed:
            self.changed.notify_all()

    # The stream.

    async def run(self):
        """Keeps a stream open to one of the coordinators until the pod has left."""
        acks = asyncio.create_task(self.send_acks())
        try:
            while True:
                target = next(self.targets)
                options = [("grpc.keepalive_time_ms", 10_000), ("grpc.keepalive_timeout_ms", 10_000)]
                if target.startswith("unix:"):
                    # Otherwise grpcio sends the path as the authority, which is not a valid one.
                    options.append(("grpc.default_authority", "localhost"))
                async with grpc.aio.insecure_channel(target, options=options) as channel:
                    self.stub = self.rpc.PodsStub(channel)
                    try:
                        await self.follow(self.stub)
                    except BROKEN as error:
                        log.info("stream to %s ended: %s", target, describe(error))
                        is_over = isinstance(error, grpc.aio.AioRpcError) and error.code() == grpc.StatusCode.NOT_FOUND
                        if is_over:
                            self.fence()
                        if self.leaving and is_over:
                            self.left = True
                            return
                await asyncio.sleep(0.1)
        finally:
            acks.cancel()

    async def follow(self, stub):
        pb = self.pb
        call = stub.Register(metadata=self.metadata())
        sent = {1: lease_now()}
        hello = pb.Hello(protocol_min=1, protocol_max=1, keyspace=self.keyspace, pod=self.name, address=self.address)
        hello.lease_ttl.seconds = self.lease_ttl
        hello.capabilities.extend(["sync", "drained", "released", "fence"])
        if self.makes_checkpoints:
            hello.capabilities.append("checkpoint")
        hello.resume = self.resume
        hello.holdings.extend(pb.Holding(partition=p, epoch=e) for p, e in self.held.items())
        beats, seen = None, [0]
        try:
            # Another instance may have told them, and would wait anew for a checkpoint.
            first = call.write(pb.Heartbeat(seq=1, hello=hello, progress=self.progress()))
            # A coordinator responds to every heartbeat. If it is silent, the pod leaves it while the lease is still good.
            await asyncio.wait_for(first, self.trust / 2)
            while (event := await asyncio.wait_for(call.read(), self.trust / 2)) is not grpc.aio.EOF:
                if event.HasField("welcome"):
                    await self.welcomed(event.welcome)
                    beats = asyncio.create_task(self.beat(call, seconds(event.welcome.heartbeat_every), sent, seen))
                if event.confirmed in sent:
                    begun = sent[event.confirmed]
                    self.trusted_until = begun + self.trust
                    # Half-way between `trust` and the end of the lease, because clocks may differ in speed.
                    self.stands_until = begun + (self.trust + self.ttl) / 2
                    for seq in [seq for seq in sent if seq <= event.confirmed]:
                        del sent[seq]
                await self.assigned(event)
                if event.HasField("welcome"):
                    self.keep_only(event.tasks)
                for dropped in event.dropped:
                    self.stop(dropped.partition, dropped.handoff)
                for task in event.tasks:
                    self.begin(task)
                seen[0] = event.seq
                if event.HasField("go_away"):
                    return
        finally:
            if beats:
                beats.cancel()
            call.cancel()

    async def beat(self, call, every, sent, seen):
        for seq in itertools.count(2):
            await asyncio.sleep(every)
            sent[seq] = lease_now()
            try:
                await call.write(self.pb.Heartbeat(seq=seq, seen=seen[0]))
            except BROKEN:
                return  # the reader notices as well

    async def welcomed(self, welcome):
        if not welcome.resumed:
            # Another life: nothing of the earlier one is owned, and its state is of no use.
            self.fence()
            self.acks.clear()
            for partition in list(self.running):
                self.abandon(partition, self.running[partition][0])
            for partition in list(self.held):
                await self.service.release(partition)
            self.held.clear()
        self.resume, self.incarnation = welcome.resume, welcome.incarnation
        self.trust, self.ttl = seconds(welcome.trust), seconds(welcome.lease_ttl)
        log.info("registered: incarnation %d, resumed: %s", self.incarnation, welcome.resumed)

    async def assigned(self, event):
        if not event.HasField("assignment"):
            return
        if event.assignment.full:
            self.owned.clear()
        for partition in event.assignment.gone:
            self.owned.pop(partition, None)
        self.owned.update((owned.partition, owned.epoch) for owned in event.assignment.owned)
        await self.notify()

    # Tasks.

    def begin(self, task):
        kind, partition, handoff = task.WhichOneof("kind"), task.id.partition, task.id.handoff
        if kind in (None, "leaving"):
            return  # a kind of a later version; or the end of streams, of which this service has none
        before = self.running.get(partition)
        if before and not before[2].done():
            if before[:2] == (kind, handoff):
                return  # repeated after a reconnect
            if before[0] != "release":
                self.cancel(partition)
        self.running[partition] = (kind, handoff, asyncio.create_task(self.do(kind, task)))

    def stop(self, partition, handoff):
        """Stops the task of this handoff, unless it is a Release."""
        kind, running, task = self.running.get(partition, (None, None, None))
        if running == handoff and kind != "release" and not task.done():
            self.cancel(partition)

    def progress(self):
        """Returns the progress of each Warm that runs."""
        pb, running = self.pb, self.running.items()
        warms = [(partition, handoff) for partition, (kind, handoff, task) in running if kind == "warm" and not task.done()]
        return [pb.Progress(id=pb.TaskId(partition=partition, handoff=handoff)) for partition, handoff in warms]

    def keep_only(self, due):
        """Stops the tasks of earlier streams that the first event of a stream does not list."""
        due = {(task.id.partition, task.WhichOneof("kind"), task.id.handoff) for task in due}
        for partition, (kind, handoff, _) in list(self.running.items()):
            # A Release always ends. A checkpoint may be acknowledged as long as the pod owns its epoch.
            if kind not in ("release", "checkpoint") and (partition, kind, handoff) not in due:
                self.abandon(partition, kind)

    def abandon(self, partition, kind):
        """Stops a task that is due no more. Frees what a Warm has copied: no Release follows, because the holdings do not list
        it."""
        if self.running[partition][2].done():
            return
        self.cancel(partition)
        if kind == "warm":
            self.keep(asyncio.create_task(self.free(partition)))

    def cancel(self, partition):
        """Cancels the partition's task and forgets it: it may take a while to end, and if it is due again meanwhile, it has to
        begin anew."""
        _, _, task = self.running.pop(partition)
        task.cancel()
        self.keep(task)

    def keep(self, task):
        """Keeps a task until it ends: asyncio itself does not."""
        self.ending.add(task)
        task.add_done_callback(self.ending.discard)

    async def free(self, partition):
        async with self.locks[partition]:
            # A later Warm may have ended first.
            if partition not in self.held:
                await self.service.release(partition)

    async def do(self, kind, task):
        partition, pb = task.id.partition, self.pb
        said = {}
        # A release is never cancelled, so what follows it waits.
        async with self.locks[partition]:
            while True:
                try:
                    if kind == "checkpoint":
                        name = await self.service.checkpoint(partition, task.epoch)
                        said = {"checkpoint": name.encode(), "epoch": task.epoch}
                    else:
                        await self.call(kind, task)
                    break
                except Exception as error:  # noqa: BLE001: after any error the task is still due
                    log.exception("%s of partition %d failed", kind, partition)
                    self.ack(pb.Ack(id=task.id, kind=self.report(kind), failure=str(error) or "failed"))
                    await asyncio.sleep(1)
        log.info("%s of partition %d done, handoff %d", kind, partition, task.id.handoff)
        self.ack(pb.Ack(id=task.id, kind=self.report(kind), **said))

    async def call(self, kind, task):
        partition, service = task.id.partition, self.service
        if kind == "warm" and self.held.get(partition) != task.epoch:
            start = {"checkpoint": task.warm.checkpoint.decode()} if self.makes_checkpoints else {}
            await service.warm(partition, task.epoch, task.warm.from_address, **start)
            self.held[partition] = task.epoch
        elif kind == "sync":
            await service.sync(partition)
        elif kind == "drain":
            await self.until(lambda: not self.in_flight.get(partition))
            await service.drain(partition)
        elif kind == "release":
            await self.until(lambda: not self.in_flight.get(partition))
            # A Warm of the stream before may have ended since this stream began: that is the state of a later epoch.
            if not 0 < task.epoch < self.held.get(partition, 0):
                self.held.pop(partition, None)
                await service.release(partition)

    def report(self, kind):
        # By name: an old pods.proto has no CHECKPOINTED.
        reports = {"warm": "READY", "sync": "SYNCED", "drain": "DRAINED", "release": "RELEASED", "checkpoint": "CHECKPOINTED"}
        return getattr(self.pb, reports[kind])

    def ack(self, ack):
        self.acks[ack.id.partition, ack.id.handoff, ack.kind] = ack
        self.acks_due.set()

    async def send_acks(self):
        """Sends each acknowledgement, to any instance, until it gets a response."""
        while True:
            await self.acks_due.wait()
            self.acks_due.clear()
            due = list(self.acks.items())
            batches = [due[begin : begin + MAX_ACKS] for begin in range(0, len(due), MAX_ACKS)]
            # What is too early must not keep the others from their turn.
            again = [await self.send(batch) for batch in batches]
            if any(again):
                self.acks_due.set()
                await asyncio.sleep(0.1)

    async def send(self, batch):
        """Sends acknowledgements once. Returns whether some have to be sent again."""
        try:
            request = self.pb.AckRequest(resume=self.resume, acks=[ack for _, ack in batch])
            outcomes = (await self.answer(lambda stub: stub.Ack(request, timeout=5, metadata=self.metadata()))).outcomes
        except BROKEN:
            return True
        for (key, ack), outcome in zip(batch, outcomes):
            if outcome != self.pb.AGAIN and self.acks.get(key) is ack:
                del self.acks[key]
        return self.pb.AGAIN in outcomes

    def metadata(self):
        """Returns what each call presents. The token is read anew, because it may have been replaced."""
        if self.token_file is None:
            return ()
        return (("authorization", "Bearer " + pathlib.Path(self.token_file).read_text().strip()),)

    async def answer(self, call):
        """Calls the coordinator of the current stream."""
        if self.stub is None:
            raise asyncio.InvalidStateError("no stream yet")
        try:
            return await call(self.stub)
        except asyncio.CancelledError:
            if asyncio.current_task().cancelling():
                raise
            # grpcio raises CancelledError if the channel is closed during a call.
            raise asyncio.InvalidStateError("the channel was closed") from None

    async def leave(self, within):
        """Hands all partitions over while it serves requests. Returns whether none was left in time."""
        self.leaving = True
        deadline = lease_now() + within
        while (left := deadline - lease_now()) > 0:
            try:
                request = self.pb.LeaveRequest(resume=self.resume)
                return (await self.answer(lambda stub: stub.Leave(request, timeout=left, metadata=self.metadata()))).empty
            except BROKEN as error:
                if self.left:
                    # The stream learnt of the end before the response arrived.
                    return not self.owned
                log.info("leaving: %s", describe(error))
                await asyncio.sleep(0.1)
        return False
