"""Takes part in Segue's handoffs through the records in etcd alone.

`Membership` registers the pod, watches the keyspace and runs the service's callbacks. Which requests may be accepted is decided as
in every other pod, by `segue_pod`. What is due follows from the view alone (`handoff.py`, `checkpoint.py`), so a lost change or a repeated one costs only time.

Invariants:

* The lease clock (`segue_pod.Ownership`) counts from when a confirmed renewal was *sent*.
* The lease is renewed only while the pod follows the store: a pod that is stuck loses it.
* Every acknowledgement requires in its transaction that its handoff and this life still exist.
* No life outlasts a store that goes back (`horizon.py`), whether the pod sees it or another participant does.
"""

import asyncio
import collections
import contextlib
import logging
import time

from checkpoint import Checkpoints, newest, record
from etcd import StoreError, created_at, delete, modified_at, put
from handoff import PROTOCOL, Pod, Task, due, other_version, partitions, serves
from horizon import Horizon
from segue_pod import HandoffContext, Participant, lease_now

log = logging.getLogger("pod")

ACKS = {"sync": "synced", "drain": "drained", "release": "released"}


def unix_millis():
    return int(time.time() * 1000)


class Membership(Participant):
    """A pod's part in the keyspace. `service` has the callbacks `warm`, `sync`, `drain` and `release`, and `checkpoint` if it makes
    checkpoints, as `segue_pod.Callbacks` describes them."""

    def __init__(self, etcd, prefix, keyspace, name, address, lease_ttl, service):
        super().__init__(service, keyspace, name)
        self.etcd, self.address = etcd, address
        self.prefix = f"{prefix}{keyspace}/"
        self.key = f"{self.prefix}pods/{name}"
        self.ttl = lease_ttl
        self.makes_checkpoints = hasattr(service, "checkpoint")
        self.checkpoints = Checkpoints()
        self.horizon = Horizon()
        self.lease = 0
        self.lease_ended = False
        self.status = "Ready"
        self.view = {}
        self.held = {}  # partition: the epoch of the state that the pod has
        self.running = {}  # partition: (what is due, the asyncio task that does it)
        self.locks = collections.defaultdict(asyncio.Lock)  # partition: held while one of its tasks runs
        self.gone_since, self.asked = {}, {}  # a dead pod with a bound on its work: since when its key is known to be gone
        self.acted_at = 0.0
        self.over = asyncio.Event()

    @property
    def incarnation(self):
        """The life that is registered, otherwise 0."""
        return self.ownership.incarnation

    # The registration.

    async def run(self):
        """Registers the pod, again after the loss of a lease, and takes part until the pod has left."""
        while not self.over.is_set():
            try:
                await self.live()
            except StoreError as error:
                log.info("not registered: %s", error)
                await asyncio.sleep(self.ttl / 12)

    async def live(self):
        """Lives one life, from its registration to its end."""
        await self.raise_floor()
        config = self.horizon.config
        if spoken := other_version(config):
            log.error("not registered: the keyspace speaks version %s of the protocol, and this pod version %d", spoken, PROTOCOL)
            await asyncio.sleep(self.ttl / 12)
            return
        sent = lease_now()
        self.lease = await self.etcd.grant(self.ttl)
        unchanged = modified_at(f"{self.prefix}config", config.mod_revision if config else 0)
        guards = [created_at(self.key, 0), unchanged]
        incarnation = await self.etcd.commit(guards, [put(self.key, self.record(), self.lease)])
        self.ownership.incarnation = incarnation or 0
        if not incarnation:
            log.info("another life of %s is registered, or the settings have just changed; trying again", self.name)
            await self.etcd.revoke(self.lease)
            await asyncio.sleep(self.ttl / 12)
            return
        log.info("registered: incarnation %d", self.incarnation)
        self.confirmed(sent)
        self.acted_at = lease_now()
        self.lease_ended = False
        self.horizon.begin_life()
        renewals = asyncio.create_task(self.renew())
        try:
            await self.follow()
        finally:
            renewals.cancel()
            await self.end()

    async def raise_floor(self):
        """Sees to it that no epoch comes back after the store went back, and notes the floor under which a life begins."""
        config = f"{self.prefix}config"
        while True:
            revision, entries = await self.etcd.snapshot(config, config + "\0")
            self.horizon.saw(revision, entries[0] if entries else None)
            raised = self.horizon.raised()
            if raised is None:
                return
            entry = self.horizon.config
            log.error("the store went back; raising epoch_floor to %d", raised["epoch_floor"])
            await self.etcd.commit([modified_at(config, entry.mod_revision)], [put(config, raised)])

    async def end(self):
        """Ends this life: stops all requests and tasks, drops the state, and then gives the registration up."""
        if not self.incarnation:
            return
        left = max(0.0, self.ownership.stands_until - lease_now())
        self.ownership.fence()
        # A write that has begun may take effect for as long as the lease allows.
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.ownership.until(lambda: not any(self.ownership.in_flight.values())), left)
        tasks = [task for _, task in self.running.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.running.clear()
        for partition, epoch in self.held.items():
            await self.service.release(HandoffContext(partition, epoch))
        self.held.clear()
        incarnation, self.ownership.incarnation = self.incarnation, 0
        with contextlib.suppress(StoreError):
            # First, because the partitions are planned anew once the key is gone.
            if self.horizon.ends_life():
                await self.raise_floor()
            # The key of this life alone, which can exist without its lease.
            await self.etcd.commit([created_at(self.key, incarnation)], [delete(self.key)])
            await self.etcd.revoke(self.lease)

    def record(self):
        now = unix_millis()
        return {
            "pod_name": self.name,
            "address": self.address,
            "status": self.status,
            "registered_at": now,
            "last_heartbeat": now,
            "weight": 1.0,
            "zone": None,
            "capabilities": ["sync", "drained", "released", "fence"] + ["checkpoint"] * self.makes_checkpoints,
        }

    def confirmed(self, sent):
        """The lease existed after `sent`."""
        self.ownership.confirm(sent, self.ttl * 2 / 3, self.ttl)

    async def renew(self):
        while True:
            await asyncio.sleep(self.ttl / 6)
            sent = lease_now()
            if sent - self.acted_at > self.ttl / 2:
                log.error("the pod does not follow the store; its lease is not renewed")
                continue
            with contextlib.suppress(StoreError):
                if not await self.etcd.keep_alive(self.lease):
                    self.lease_ended = True
                    return
                self.confirmed(sent)

    # The view.

    async def follow(self):
        """Follows the store until this life has ended."""
        # What finished handoffs left behind sorts last, and no participant needs it.
        end = self.prefix + "~"
        while not self.over.is_set():
            try:
                revision, entries = await self.etcd.snapshot(self.prefix, end)
                self.view = {entry.key.removeprefix(self.prefix): entry for entry in entries}
                self.horizon.saw(revision, self.view.get("config"))
                if not await self.act():
                    return
                # A watch can be silent because it is broken, so a snapshot follows soon.
                async for changes in self.etcd.watch(self.prefix, revision + 1, self.ttl / 6, end):
                    for key, entry in changes:
                        self.see(key.removeprefix(self.prefix), entry)
                    self.horizon.saw_changes(changes, self.view.get("config"))
                    if not await self.act():
                        return
            except StoreError as error:
                log.info("reading the keyspace again: %s", error)
                await asyncio.sleep(0.1)

    def see(self, key, entry):
        if entry is None:
            self.view.pop(key, None)
        else:
            self.view[key] = entry

    async def act(self):
        """Does what the view requires. Returns whether this life goes on."""
        own = self.view.get(f"pods/{self.name}")
        if self.over.is_set():
            return False
        if own is None or own.create_revision != self.incarnation or self.lease_ended:
            log.error("the registration has ended")
            return False
        if self.horizon.ends_life():
            log.error("the store went back; this life is over")
            return False
        if spoken := other_version(self.view.get("config")):
            log.error("the keyspace speaks version %s of the protocol now, and this pod version %d", spoken, PROTOCOL)
            return False
        if own.lease != self.lease or own.value is None or own.value.get("status") != self.status:
            # A plain put by somebody else detaches the key from its lease.
            guards = [created_at(self.key, self.incarnation), modified_at(self.key, own.mod_revision)]
            await self.etcd.commit(guards, [put(self.key, self.record(), self.lease)])
        pod, self.asked = Pod(self.name, self.incarnation), {}
        concerned = partitions(self.view, pod) | set(self.held) | set(self.running)
        epochs = {partition: serves(self.view, pod, partition, self.held.get(partition)) for partition in concerned}
        self.ownership.epochs = {partition: epoch for partition, epoch in epochs.items() if epoch is not None}
        for partition in concerned:
            self.begin(partition, self.due(pod, partition))
        self.gone_since = self.asked
        self.acted_at = lease_now()
        await self.ownership.notify()
        return True

    def due(self, pod, partition):
        """Returns the task that is due for the partition now."""
        task, now = due(self.view, pod, partition, self.held.get(partition), self.has_ended), lease_now()
        if task is not None and task.kind == "warm" and self.running.get(partition, (None,))[0] != task:
            if self.checkpoints.waits_until(self.view, partition, task.handoff, now) is not None:
                return None
        if task is None and self.makes_checkpoints and partition in self.ownership.epochs:
            epoch = self.checkpoints.due(self.view, pod, partition, now)
            return Task("checkpoint", epoch) if epoch == self.ownership.epochs[partition] else None
        return task

    def has_ended(self, pod, within_ms):
        since = self.asked[pod] = self.gone_since.get(pod, lease_now())
        return lease_now() - since >= within_ms / 1000

    # Tasks.

    def begin(self, partition, task):
        """Replaces the partition's task by the one that is due."""
        now, doing = self.running.get(partition, (None, None))
        if doing is not None and doing.done():
            now, doing = None, None
            del self.running[partition]
        if task == now:
            return
        if doing is not None and now.kind not in ("release", "forget"):
            doing.cancel()
        if task is not None:
            self.running[partition] = (task, asyncio.create_task(self.do(partition, task)))

    async def do(self, partition, task):
        # A release is never cancelled, so what follows it waits.
        async with self.locks[partition]:
            while True:
                try:
                    if task.kind == "checkpoint":
                        await self.checkpoint(partition, task.epoch)
                        return
                    await self.call(partition, task)
                    if await self.report(partition, task):
                        log.info("%s of partition %d done, handoff %d", task.kind, partition, task.handoff)
                    return
                except Exception as error:  # noqa: BLE001: after any error the task is still due
                    log.info("%s of partition %d failed: %r", task.kind, partition, error)
                    await asyncio.sleep(0.5)

    async def call(self, partition, task):
        service, part = self.service, HandoffContext(partition, task.epoch)
        if task.kind == "warm" and self.held.get(partition) != task.epoch:
            old = (self.value(f"handoffs/{partition}") or {}).get("old_owner")
            address = (self.value(f"pods/{old}") or {}).get("address", "")
            await service.warm(part._replace(from_address=address, checkpoint=newest(self.view, partition)))
            self.held[partition] = task.epoch
        elif task.kind == "sync":
            await service.sync(part)
        elif task.kind == "drain":
            await self.ownership.until_idle(partition)
            await service.drain(part)
        elif task.kind in ("release", "forget"):
            await self.ownership.until_idle(partition)
            self.held.pop(partition, None)
            await service.release(part)

    async def checkpoint(self, partition, epoch):
        """Has the service make a checkpoint, and records it if this life still owns that epoch."""
        key, name = f"checkpoints/{partition}", await self.service.checkpoint(HandoffContext(partition, epoch))
        value = record(self.view, Pod(self.name, self.incarnation), partition, epoch, name, unix_millis())
        if value is None:
            return
        assignment = f"assignments/{partition}"
        guards = [
            created_at(self.key, self.incarnation),
            modified_at(self.prefix + assignment, self.view[assignment].mod_revision),
        ]
        revision = await self.etcd.commit(guards, [put(self.prefix + key, value)])
        if revision is not None:
            # Until then it would seem to be due.
            await self.ownership.until(lambda: key in self.view and self.view[key].mod_revision >= revision)

    def value(self, key):
        entry = self.view.get(key)
        return entry and entry.value

    async def report(self, partition, task):
        """Records in the store that a handoff's task is done. Returns False if that handoff is over."""
        if not task.handoff:
            return True
        key, record = f"{self.prefix}handoffs/{partition}", self.view.get(f"handoffs/{partition}")
        guards = [created_at(self.key, self.incarnation), created_at(key, task.handoff)]
        if task.kind == "warm":
            if record is None or record.create_revision != task.handoff or (record.value or {}).get("phase") != "Warming":
                return False
            # Fields that this pod does not know are kept.
            ready = record.value | {"phase": "Ready", "phase_entered_at": unix_millis()}
            return await self.etcd.commit([*guards, modified_at(key, record.mod_revision)], [put(key, ready)])
        ack = ACKS[task.kind]
        value = {
            "pod_name": self.name,
            "partition": partition,
            "handoff": task.handoff,
            "ack": ack,
            "acked_at": unix_millis(),
        }
        return await self.etcd.commit(guards, [put(f"{self.prefix}pod_acks/{partition}/{self.name}/{ack}", value)])

    async def leave(self, within):
        """Hands all partitions over while it serves requests. Returns whether none was left in time."""
        self.status = "Draining"
        pod = Pod(self.name, self.incarnation)
        with contextlib.suppress(StoreError):  # `act` tries again
            await self.etcd.commit([created_at(self.key, self.incarnation)], [put(self.key, self.record(), self.lease)])
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.ownership.until(lambda: self.is_drained() and not partitions(self.view, pod)), within)
        empty = not partitions(self.view, pod)
        self.over.set()
        await self.end()
        return empty

    def is_drained(self):
        return (self.value(f"pods/{self.name}") or {}).get("status") == "Draining"
