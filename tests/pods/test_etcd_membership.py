"""Tests of the example straight on etcd against a real etcd: `python -m unittest`, as `cargo test --workspace --test process python_pods::`
does."""

import asyncio
import os
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [os.path.join(ROOT, "tests"), os.path.join(ROOT, "examples/python-etcd-pod")]

from etcd import Etcd, put  # noqa: E402
from handoff import Task  # noqa: E402
from harness.etcd import Etcd as EtcdProcess  # noqa: E402
from harness.processes import end_all  # noqa: E402
from harness.waiting import eventually  # noqa: E402
from membership import Membership  # noqa: E402
from segue_pod import lease_now  # noqa: E402

TTL = 2
PREFIX = "/segue/default/"
KEY = f"{PREFIX}pods/a"


class Service:
    def __init__(self):
        self.calls = []

    async def warm(self, part):
        self.calls.append(("warm", part.partition, part.epoch, part.checkpoint))

    async def sync(self, part):
        self.calls.append(("sync", part.partition))

    async def drain(self, part):
        self.calls.append(("drain", part.partition))

    async def release(self, part):
        self.calls.append(("release", part.partition))


class Lives(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="segue-pods-")
        self.etcd = Etcd([EtcdProcess(self.folder.name).url], timeout=TTL)
        self.running = []
        self.pod = self.start()
        await self.sees(lambda entries: KEY in entries)
        await self.pod.ownership.until(lambda: self.pod.acted_at)

    async def asyncTearDown(self):
        for task in self.running:
            task.cancel()
        await asyncio.gather(*self.running, return_exceptions=True)
        await self.etcd.close()
        end_all()
        self.folder.cleanup()

    def start(self):
        pod = Membership(self.etcd, "/segue/", "default", "a", "127.0.0.1:1", TTL, Service())
        self.running.append(asyncio.create_task(pod.run()))
        return pod

    async def sees(self, holds):
        """Waits until what is stored meets the condition. Returns it, by key."""
        deadline = lease_now() + 60
        while lease_now() < deadline:
            _, entries = await self.etcd.snapshot(PREFIX)
            stored = {entry.key: entry for entry in entries}
            if holds(stored):
                return stored
            await asyncio.sleep(0.02)
        self.fail(f"not within a minute; stored: {sorted(stored)}")

    async def owns(self, partition, epoch):
        """Assigns a partition to the pod by hand, and waits until the pod serves it."""
        assignment = {"partition": partition, "owner": "a", "incarnation": self.pod.incarnation, "epoch": epoch}
        await self.etcd.commit([], [put(f"{PREFIX}assignments/{partition}", assignment)])
        await asyncio.wait_for(self.pod.ownership.until(lambda: self.pod.ownership.epochs == {partition: epoch}), 60)

    async def test_a_registration_that_was_detached_from_its_lease_is_put_back(self):
        incarnation, lease = self.pod.incarnation, self.pod.lease
        await self.etcd.commit([], [put(KEY, {"pod_name": "a", "status": "Ready"})])
        stored = await self.sees(lambda entries: KEY in entries and entries[KEY].lease == lease)
        self.assertEqual((stored[KEY].create_revision, stored[KEY].value["address"]), (incarnation, "127.0.0.1:1"))

    async def test_a_pod_that_has_lost_its_lease_fences_and_begins_another_life(self):
        await self.owns(7, 5)
        async with self.pod.ownership.enter(7, 5) as owned:
            life = self.pod.incarnation
            self.assertEqual(owned.incarnation, life)
            await self.etcd.revoke(self.pod.lease)
            await eventually(lambda: not self.pod.ownership.epochs, "the end of the life")
            self.assertFalse(owned.may_write())
            await self.sees(lambda entries: KEY in entries and entries[KEY].create_revision > life)
            await asyncio.wait_for(self.pod.ownership.until(lambda: self.pod.incarnation > life), 60)
        async with self.pod.ownership.enter(7, 5) as accepted:
            self.assertIsNone(accepted)
        self.assertIn(("release", 7), self.pod.service.calls)

    async def test_a_second_process_waits_until_the_first_life_is_over(self):
        first, second = self.pod.incarnation, self.start()
        leases = set()
        # It asks for a new lease before each attempt.
        await eventually(lambda: leases.add(second.lease) or len(leases - {0}) > 2, "attempts to register")
        stored = await self.sees(lambda entries: KEY in entries)
        self.assertEqual((stored[KEY].create_revision, stored[KEY].mod_revision), (first, first))
        self.running[0].cancel()
        await self.sees(lambda entries: KEY in entries and entries[KEY].create_revision > first)
        await asyncio.wait_for(second.ownership.until(lambda: second.incarnation > first), 60)

    async def test_a_pod_that_does_not_follow_the_store_loses_its_lease(self):
        never = asyncio.Event()
        self.pod.act = never.wait
        begun = lease_now()
        await self.sees(lambda entries: KEY not in entries)
        # etcd looks for leases that have ended twice a second.
        self.assertLess(lease_now() - begun, 1.5 * TTL + 1)

    async def test_a_handoff_that_has_moved_on_is_not_moved_back(self):
        record = {"new_owner": "a", "new_incarnation": self.pod.incarnation, "phase": "Syncing", "epoch": 9}
        # An old owner that cannot be read is waited for, so that nothing is due.
        await self.etcd.commit([], [put(f"{PREFIX}pods/b", "unreadable")])
        old = (await self.sees(lambda entries: f"{PREFIX}pods/b" in entries))[f"{PREFIX}pods/b"]
        record |= {"old_owner": "b", "old_incarnation": old.create_revision}
        handoff = await self.etcd.commit([], [put(f"{PREFIX}handoffs/7", record)])
        await asyncio.wait_for(self.pod.ownership.until(lambda: "handoffs/7" in self.pod.view), 60)
        self.assertFalse(await self.pod.report(7, Task("warm", 9, handoff)))
        stored = await self.sees(lambda entries: True)
        self.assertEqual(stored[f"{PREFIX}handoffs/7"].value, record)

    async def test_an_acknowledgement_of_a_handoff_that_is_over_is_not_written(self):
        self.assertFalse(await self.pod.report(7, Task("drain", 5, handoff=999)))
        _, entries = await self.etcd.snapshot(f"{PREFIX}pod_acks/")
        self.assertEqual(entries, [])

    async def test_an_owner_makes_checkpoints_and_its_next_warm_up_starts_from_the_newest(self):
        async def checkpoint(part):
            return f"{part.partition}@{part.epoch}"

        service = self.pod.service
        service.checkpoint, self.pod.makes_checkpoints = checkpoint, True
        planning = {"checkpoint_interval_ms": 50}
        await self.etcd.commit([], [put(f"{PREFIX}config", {"partitions": 16, "planning": planning})])
        await self.owns(7, 5)
        key = f"{PREFIX}checkpoints/7"
        first = (await self.sees(lambda entries: key in entries))[key]
        made = {"partition": 7, "checkpoint": "7@5", "pod_name": "a", "epoch": 5, "handoff": 0}
        self.assertEqual(first.value, made | {"taken_at": first.value["taken_at"]})
        await self.sees(lambda entries: entries[key].mod_revision > first.mod_revision)
        await self.owns(7, 6)
        self.assertEqual([call for call in service.calls if call[0] == "warm"], [("warm", 7, 5, ""), ("warm", 7, 6, "7@5")])

    async def test_a_pod_that_leaves_is_no_longer_registered(self):
        self.assertTrue(await self.pod.leave(within=60))
        _, entries = await self.etcd.snapshot(PREFIX)
        self.assertEqual([entry.key for entry in entries], [])


if __name__ == "__main__":
    unittest.main()
