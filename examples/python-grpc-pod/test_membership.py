"""Tests of `membership.py` without a coordinator: `python -m unittest`, as `cargo test --workspace --test python_pods` does."""

import asyncio
import types
import unittest

from membership import Membership, lease_now


class Service:
    def __init__(self):
        self.calls = []

    async def warm(self, partition, epoch, from_address):
        self.calls.append("warm")

    async def release(self, partition):
        self.calls.append("release")


class Task:
    """A task as `segue.v1.Task` has it."""

    def __init__(self, kind, handoff):
        self.id, self.epoch, self.kind = types.SimpleNamespace(partition=0, handoff=handoff), handoff, kind
        self.warm = types.SimpleNamespace(from_address="")

    def WhichOneof(self, name):
        return self.kind


def welcome(incarnation):
    span = types.SimpleNamespace(seconds=10, nanos=0)
    return types.SimpleNamespace(incarnation=incarnation, resume=b"", resumed=False, trust=span, lease_ttl=span)


async def live(membership, incarnation):
    """Begins a life that owns partition 0 at epoch 1, with a lease that lasts."""
    await membership.welcomed(welcome(incarnation))
    membership.owned[0] = 1
    membership.trusted_until = membership.stands_until = lease_now() + 60


class Lives(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self):
        self.membership = Membership((None, None), ["127.0.0.1:1"], "default", "a", "127.0.0.1:2", 10, Service())
        await live(self.membership, 7)

    async def test_a_request_of_an_earlier_life_may_not_write(self):
        async with self.membership.request(0, 1) as life:
            self.assertTrue(self.membership.may_write(life))
            await live(self.membership, 8)
            self.assertFalse(self.membership.may_write(life))
            async with self.membership.request(0, 1) as later:
                self.assertTrue(self.membership.may_write(later))

    async def test_a_fenced_pod_neither_accepts_nor_writes(self):
        async with self.membership.request(0, 1) as life:
            self.membership.fence()
            self.assertFalse(self.membership.may_write(life))
        async with self.membership.request(0, 1) as life:
            self.assertIsNone(life)

    async def test_a_release_that_waits_for_a_request_is_finished_before_a_later_task_begins(self):
        self.membership.pb = types.SimpleNamespace(READY=1, SYNCED=2, DRAINED=3, RELEASED=4, Ack=types.SimpleNamespace)
        async with self.membership.request(0, 1):
            for task in (Task("release", 1), Task("warm", 2), Task("warm", 3)):
                self.membership.begin(task)
                for _ in range(9):
                    await asyncio.sleep(0)  # lets it go as far as it can
            self.assertEqual(self.membership.service.calls, [])
        await self.membership.running[0][2]
        self.assertEqual(self.membership.service.calls, ["release", "warm"])

    async def test_a_release_leaves_the_state_of_a_later_epoch_alone(self):
        self.membership.pb = types.SimpleNamespace(READY=1, SYNCED=2, DRAINED=3, RELEASED=4, Ack=types.SimpleNamespace)
        for task, calls in ((Task("warm", 3), ["warm"]), (Task("release", 2), ["warm"]), (Task("release", 3), ["warm", "release"])):
            self.membership.begin(task)
            await self.membership.running[0][2]
            self.assertEqual(self.membership.service.calls, calls)

    async def test_a_checkpoint_is_reported_with_its_name_and_epoch_and_gives_way_to_a_drain(self):
        membership = self.membership
        membership.pb = types.SimpleNamespace(DRAINED=3, CHECKPOINTED=5, Ack=types.SimpleNamespace)
        stuck = asyncio.Event()

        async def checkpoint(partition, epoch):
            await stuck.wait()
            return f"{partition}@{epoch}"

        async def drain(partition):
            pass

        membership.service.checkpoint, membership.service.drain = checkpoint, drain
        membership.begin(Task("checkpoint", 0))
        await asyncio.sleep(0)
        membership.begin(Task("drain", 4))
        await membership.running[0][2]
        self.assertEqual([ack.kind for ack in membership.acks.values()], [3])
        stuck.set()
        membership.begin(Task("checkpoint", 0))
        await membership.running[0][2]
        ack = membership.acks[0, 0, 5]
        self.assertEqual((ack.checkpoint, ack.epoch), (b"0@0", 0))


if __name__ == "__main__":
    unittest.main()
