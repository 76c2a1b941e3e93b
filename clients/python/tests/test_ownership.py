"""Tests of which requests are accepted: `python -m unittest discover tests`, as `cargo test --workspace --test process python_pods::`
does."""

import asyncio
import unittest

from segue_pod import Ownership, lease_now


def owning(incarnation=7):
    """Returns an ownership of partition 0 at epoch 5, with a lease that lasts."""
    ownership = Ownership("default")
    ownership.incarnation, ownership.epochs = incarnation, {0: 5}
    ownership.confirm(lease_now(), 60, 90)
    return ownership


def stamps(partition="0", epoch="5", keyspace="default"):
    return [("segue-partition", partition), ("segue-epoch", epoch), ("segue-keyspace", keyspace)]


class Requests(unittest.IsolatedAsyncioTestCase):
    async def admits(self, ownership, headers):
        async with ownership.admit(headers) as owned:
            return owned is not None

    async def test_only_a_request_of_the_epoch_the_partition_and_the_keyspace_is_accepted(self):
        ownership = owning()
        self.assertTrue(await self.admits(ownership, stamps()))
        upper = [(name.title(), value) for name, value in stamps()]
        self.assertTrue(await self.admits(ownership, upper))
        for wrong in (stamps(epoch="4"), stamps(epoch="6"), stamps(partition="1"), stamps(keyspace="other")):
            self.assertFalse(await self.admits(ownership, wrong), wrong)

    async def test_stamps_that_are_absent_doubled_or_no_plain_numbers_are_refused(self):
        ownership = owning()
        for text in ("", "+5", " 5", "5_0", "٥", "5, 5", "-5", "5.0"):
            self.assertFalse(await self.admits(ownership, stamps(epoch=text)), text)
        for absent in range(3):
            self.assertFalse(await self.admits(ownership, [it for at, it in enumerate(stamps()) if at != absent]))
            self.assertFalse(await self.admits(ownership, [*stamps(), stamps()[absent]]))

    async def test_a_request_waits_a_moment_for_an_ownership_that_its_router_learnt_of_first(self):
        ownership = owning()
        admitting = asyncio.create_task(self.admits(ownership, stamps(epoch="6")))
        await asyncio.sleep(0)
        ownership.epochs[0] = 6
        await ownership.notify()
        self.assertTrue(await admitting)

    async def test_a_request_of_an_earlier_life_may_not_write(self):
        ownership = owning(7)
        async with ownership.admit(stamps()) as owned:
            self.assertTrue(owned.may_write())
            ownership.incarnation = 8
            self.assertFalse(owned.may_write())
            async with ownership.admit(stamps()) as later:
                self.assertTrue(later.may_write())

    async def test_a_fenced_pod_neither_accepts_nor_writes(self):
        ownership = owning()
        async with ownership.admit(stamps()) as owned:
            ownership.fence()
            self.assertFalse(owned.may_write())
        self.assertFalse(await self.admits(ownership, stamps()))

    async def test_a_pod_stops_accepting_before_it_stops_writing_and_both_before_the_lease_ends(self):
        ownership, ttl = owning(), 90
        for ago, accepts, writes in ((59, True, True), (61, False, True), (74, False, True), (76, False, False)):
            ownership.confirm(lease_now(), 60, ttl)
            async with ownership.admit(stamps()) as owned:
                ownership.confirm(lease_now() - ago, 60, ttl)
                self.assertEqual((await self.admits(ownership, stamps()), owned.may_write()), (accepts, writes), ago)

    async def test_a_partition_is_idle_once_all_that_was_accepted_has_ended(self):
        ownership = owning()
        async with ownership.admit(stamps()):
            async with ownership.admit(stamps()):
                idle = asyncio.create_task(ownership.until_idle(0))
                await asyncio.sleep(0)
            for _ in range(9):
                await asyncio.sleep(0)
            self.assertFalse(idle.done())
        await idle


if __name__ == "__main__":
    unittest.main()
