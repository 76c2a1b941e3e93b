"""A pod's part in a keyspace, through the gRPC service of Segue's coordinators or of its sidecar.

Invariants:

* The token stays in this process. A restarted process is a new incarnation.
* A registration that is over stops all requests before anything else follows.
* A coordinator that is silent is left while the lease is still good.
"""

import asyncio
import itertools
import logging

import grpc

from .callbacks import provides
from .coordinator import BROKEN, Acks, Coordinator, describe, is_over
from .ownership import lease_now
from .participant import Participant
from .proto import PodsStub, pb
from .tasks import Tasks

log = logging.getLogger("segue_pod")


def seconds(span):
    return span.seconds + span.nanos / 1e9


class Membership(Participant):
    """A pod's part in a keyspace. `run` or `take_part` registers it.

    `service` has the callbacks of `Callbacks` that it needs. `address` is where routers reach the pod, `coordinators` are tried in
    turn: `host:port`, or `unix:PATH` of a sidecar's stream. `lease_ttl` is in whole seconds. `credentials` are those of
    `grpc.ssl_channel_credentials`, without which nothing is encrypted; `token_file` has the token that the coordinators require.
    `fence` claims that no accepted request takes effect after the lease: each write asks `Owned.may_write` before. `weight`, `zone`
    and `version` are what the placement of partitions goes by.
    """

    def __init__(self, service, *, coordinators, keyspace, name, address, lease_ttl=15, token_file=None, credentials=None, fence=True,
                 weight=1.0, zone="", version=""):
        super().__init__(service, keyspace, name)
        self.targets = itertools.cycle(coordinators)
        able = [can for can in ("sync", "checkpoint") if provides(service, can)]
        self.hello = pb.Hello(
            protocol_min=1, protocol_max=1, keyspace=keyspace, pod=name, address=address, weight=weight, zone=zone, version=version,
            capabilities=["drained", "released", *able, *["fence"] * fence], nothing_to_warm=not provides(service, "warm"),
        )
        self.hello.lease_ttl.seconds = lease_ttl
        self.coordinator = Coordinator(token_file, credentials)
        self.acks = Acks(self.coordinator)
        self.tasks = Tasks(service, self.ownership, self.acks)
        self.trust, self.ttl = lease_ttl * 2 / 3, lease_ttl
        self.is_leaving = self.has_left = False

    async def run(self):
        """Keeps a stream open to one of the coordinators until the pod has left."""
        acks = asyncio.create_task(self.acks.send_all())
        try:
            while not self.has_left:
                target = next(self.targets)
                async with self.coordinator.channel(target) as channel:
                    self.coordinator.stub = PodsStub(channel)
                    try:
                        await self.follow(self.coordinator.stub)
                    except BROKEN as error:
                        log.info("stream to %s ended: %s", target, describe(error))
                        if is_over(error):
                            self.end_life()
                            self.has_left = self.is_leaving
                if asyncio.current_task().cancelling():
                    # The stream ended at the same time, and grpcio has told of that alone.
                    raise asyncio.CancelledError
                await asyncio.sleep(0.1)
        finally:
            acks.cancel()

    async def follow(self, stub):
        call = stub.Register(metadata=self.coordinator.metadata())
        sent, beats, seen = {1: lease_now()}, None, [0]
        try:
            # A coordinator responds to every heartbeat. If it is silent, the pod leaves it while the lease is still good.
            async with asyncio.timeout(self.trust / 2):
                await call.write(self.first_heartbeat())
            while (event := await self.next(call)) is not grpc.aio.EOF:
                if event.HasField("welcome"):
                    self.welcomed(event.welcome)
                    beats = asyncio.create_task(self.beat(call, seconds(event.welcome.heartbeat_every), sent, seen))
                self.confirmed(event.confirmed, sent)
                await self.assigned(event)
                if event.HasField("welcome"):
                    self.tasks.keep_only(event.tasks)
                for dropped in event.dropped:
                    self.tasks.stop(dropped.partition, dropped.handoff)
                for task in event.tasks:
                    self.tasks.begin(task)
                seen[0] = event.seq
                if event.HasField("go_away"):
                    return
        finally:
            if beats:
                beats.cancel()
            call.cancel()

    async def next(self, call):
        """Returns the next event of a stream. Not by `wait_for`, which may overlook that this task is cancelled if the stream ends at
        the same time."""
        async with asyncio.timeout(self.trust / 2):
            return await call.read()

    def first_heartbeat(self):
        hello = pb.Hello()
        hello.CopyFrom(self.hello)
        hello.resume = self.coordinator.resume
        hello.holdings.extend(pb.Holding(partition=partition, epoch=epoch) for partition, epoch in self.tasks.held.items())
        # Another instance may have told the warms, and would wait anew for a checkpoint.
        return pb.Heartbeat(seq=1, hello=hello, progress=self.tasks.progress(), load=self.load())

    def load(self):
        """Returns what the service reports of its partitions, if it reports anything."""
        if not provides(self.service, "keys"):
            return None
        try:
            return pb.Load(keys=self.service.keys())
        except Exception:  # noqa: BLE001: without heartbeats the lease would end
            log.exception("keys failed")
            return None

    async def beat(self, call, every, sent, seen):
        for seq in itertools.count(2):
            await asyncio.sleep(every)
            sent[seq] = lease_now()
            try:
                await call.write(pb.Heartbeat(seq=seq, seen=seen[0], load=self.load()))
            except BROKEN:
                return  # the reader notices as well

    def end_life(self):
        """Ends what the registration had: nothing of it is owned, and its state is of no use to the next one."""
        self.ownership.fence()
        self.coordinator.resume = b""
        self.acks.clear()
        self.tasks.end_life()

    def welcomed(self, welcome):
        if not welcome.resumed:
            self.end_life()
        self.coordinator.resume, self.ownership.incarnation = welcome.resume, welcome.incarnation
        self.trust, self.ttl = seconds(welcome.trust), seconds(welcome.lease_ttl)
        log.info("registered: incarnation %d, resumed: %s", welcome.incarnation, welcome.resumed)

    def confirmed(self, seq, sent):
        """Takes the confirmation of a heartbeat, by its number; `sent` has when each was sent."""
        if seq in sent:
            self.ownership.confirm(sent[seq], self.trust, self.ttl)
            for earlier in [it for it in sent if it <= seq]:
                del sent[earlier]

    async def assigned(self, event):
        if not event.HasField("assignment"):
            return
        epochs = self.ownership.epochs
        if event.assignment.full:
            epochs.clear()
        for partition in event.assignment.gone:
            epochs.pop(partition, None)
        epochs.update((owned.partition, owned.epoch) for owned in event.assignment.owned)
        await self.ownership.notify()

    async def leave(self, within):
        """Hands all partitions over while the service serves requests, for at most this many seconds. Returns whether none was
        left."""
        self.is_leaving = True
        deadline = lease_now() + within
        while (left := deadline - lease_now()) > 0:
            try:
                return (await self.coordinator.call("Leave", pb.LeaveRequest(resume=self.coordinator.resume), timeout=left)).empty
            except BROKEN as error:
                if self.has_left:
                    return True  # the stream learnt of the end before the response arrived
                log.info("leaving: %s", describe(error))
                await asyncio.sleep(0.1)
        return False
