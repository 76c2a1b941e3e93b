"""Runs the service's callbacks for the tasks that a coordinator sends.

Invariants:

* One task of a partition runs at a time. A release is never cancelled, so what follows it waits.
* A task is acknowledged once its callback has returned.
* What a `warm` that is stopped has copied is freed.
"""

import asyncio
import collections
import logging
from typing import NamedTuple

from .callbacks import HandoffContext, PermanentFailure, provides
from .proto import pb

log = logging.getLogger("segue_pod")

# Seconds until a callback that has failed is called again.
RETRY = 1
ACKS = {"warm": pb.READY, "sync": pb.SYNCED, "drain": pb.DRAINED, "release": pb.RELEASED, "checkpoint": pb.CHECKPOINTED}


class RunningTask(NamedTuple):
    kind: str
    handoff: int
    task: asyncio.Task


class Tasks:
    """The tasks of a pod. Each partition has one at most, besides those that end."""

    def __init__(self, service, ownership, acks):
        self.service, self.ownership, self.acks = service, ownership, acks
        self.held = {}  # partition: the epoch of the state that the pod has
        self.running = {}  # partition: its RunningTask
        self.ending = set()  # tasks that end, those that free what they have copied, and calls of `leaving`
        self.locks = collections.defaultdict(asyncio.Lock)  # partition: held while one of its tasks runs

    def begin(self, task):
        kind, partition, handoff = task.WhichOneof("kind"), task.id.partition, task.id.handoff
        if kind == "leaving":
            self.keep(asyncio.create_task(self.leaving(task)))
        if kind not in ACKS:
            return  # maybe a kind of a later version
        before = self.running.get(partition)
        if before and not before.task.done():
            if (before.kind, before.handoff) == (kind, handoff):
                return  # repeated after a reconnect
            if before.kind != "release":
                self.cancel(partition)
        self.running[partition] = RunningTask(kind, handoff, asyncio.create_task(self.run(kind, task)))

    def stop(self, partition, handoff):
        """Stops the task of this handoff, unless it is a release."""
        running = self.running.get(partition)
        if running and running.handoff == handoff and running.kind != "release" and not running.task.done():
            self.cancel(partition)

    def progress(self):
        """Returns the progress of each warm that runs."""
        warms = [(at, it.handoff) for at, it in self.running.items() if it.kind == "warm" and not it.task.done()]
        return [pb.Progress(id=pb.TaskId(partition=partition, handoff=handoff)) for partition, handoff in warms]

    def keep_only(self, due):
        """Stops the tasks of earlier streams that the first event of a stream does not list."""
        due = {(task.id.partition, task.WhichOneof("kind"), task.id.handoff) for task in due}
        for partition, running in list(self.running.items()):
            # A release always ends. A checkpoint may be acknowledged as long as the pod owns its epoch.
            if running.kind not in ("release", "checkpoint") and (partition, running.kind, running.handoff) not in due:
                self.abandon(partition)

    def end_life(self):
        """Stops all tasks and frees all state: another life begins, which has neither."""
        for partition in list(self.running):
            self.abandon(partition)
        held, self.held = self.held, {}
        for partition in held:
            self.keep(asyncio.create_task(self.free(partition)))

    def abandon(self, partition):
        """Stops a task that is due no more. Frees what a warm has copied: no release follows, because the holdings do not list it."""
        running = self.running[partition]
        if running.task.done():
            return
        self.cancel(partition)
        if running.kind == "warm":
            self.keep(asyncio.create_task(self.free(partition)))

    def cancel(self, partition):
        """Cancels the partition's task and forgets it: it may take a while to end, and if it is due again meanwhile, it has to begin
        anew."""
        running = self.running.pop(partition)
        running.task.cancel()
        self.keep(running.task)

    def keep(self, task):
        """Keeps a task until it ends: asyncio itself does not."""
        self.ending.add(task)
        task.add_done_callback(self.ending.discard)

    async def free(self, partition):
        async with self.locks[partition]:
            # A later warm may have ended first.
            if partition not in self.held:
                try:
                    await self.call("release", HandoffContext(partition, 0))
                except Exception:  # noqa: BLE001: nobody waits for it
                    log.exception("release of partition %d failed", partition)

    async def leaving(self, task):
        try:
            await self.call("leaving", HandoffContext(task.id.partition, task.epoch, to_address=task.leaving.to_address))
        except Exception:  # noqa: BLE001: nobody waits for it
            log.exception("leaving of partition %d failed", task.id.partition)

    async def run(self, kind, task):
        partition, handoff = task.id.partition, task.id.handoff
        async with self.locks[partition]:
            while True:
                try:
                    name = await self.do(kind, task)
                    break
                except Exception as error:  # noqa: BLE001: after any error the task is still due
                    log.exception("%s of partition %d failed", kind, partition)
                    permanent = isinstance(error, PermanentFailure)
                    self.acks.add(pb.Ack(id=task.id, kind=ACKS[kind], failure=str(error) or "failed", permanent=permanent))
                    await asyncio.sleep(RETRY)
        log.info("%s of partition %d done, handoff %d", kind, partition, handoff)
        made = {"checkpoint": name.encode(), "epoch": task.epoch} if kind == "checkpoint" else {}
        self.acks.add(pb.Ack(id=task.id, kind=ACKS[kind], **made))

    async def do(self, kind, task):
        partition, told = task.id.partition, getattr(task, kind)
        if kind == "warm" and self.held.get(partition) == task.epoch:
            return None
        if kind in ("drain", "release"):
            await self.ownership.until_idle(partition)
        if kind == "release":
            # A warm of the stream before may have ended since this stream began: that is the state of a later epoch.
            if 0 < task.epoch < self.held.get(partition, 0):
                return None
            self.held.pop(partition, None)
        context = HandoffContext(
            partition, task.epoch, from_address=getattr(told, "from_address", ""), to_address=getattr(told, "to_address", ""),
            checkpoint=told.checkpoint.decode() if kind == "warm" else "",
        )
        result = await self.call(kind, context)
        if kind == "warm":
            self.held[partition] = task.epoch
        return result

    async def call(self, name, context):
        return await getattr(self.service, name)(context) if provides(self.service, name) else None
