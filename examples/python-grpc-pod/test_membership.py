"""Tests of `membership.py` without a coordinator: `python -m unittest`, as `cargo test --workspace --test process python_pods::` does."""

import asyncio
import pathlib
import socket
import types
import unittest

from membership import Membership, lease_now, load_stubs

PROTO = pathlib.Path(__file__).resolve().parents[2] / "coordination/proto"


class Service:
    def __init__(self):
        self.calls = []
        self.hangs = False
        self.may_end = None  # an event for which a Warm that was cancelled waits

    async def warm(self, partition, epoch, from_address):
        self.calls.append("warm")
        if self.hangs:
            try:
                await asyncio.Event().wait()
            finally:
                if self.may_end:
                    await self.may_end.wait()
                    self.calls.append("warm ended")

    async def release(self, partition):
        self.calls.append("release")


class Task:
    """A task as `segue.v1.Task` has it."""

    def __init__(self, kind, handoff, partition=0):
        self.id, self.epoch, self.kind = types.SimpleNamespace(partition=partition, handoff=handoff), handoff, kind
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

    async def test_a_stream_stops_what_its_first_event_does_not_list_and_frees_what_a_warm_has_copied(self):
        membership, service = self.membership, self.membership.service
        messages = {name: types.SimpleNamespace for name in ("Ack", "Progress", "TaskId")}
        membership.pb = types.SimpleNamespace(READY=1, SYNCED=2, DRAINED=3, RELEASED=4, CHECKPOINTED=5, **messages)
        stuck, service.hangs, service.checkpoint = asyncio.Event(), True, lambda partition, epoch: stuck.wait()
        membership.held[5] = 9
        tasks = [Task("warm", 11, 1), Task("warm", 12, 2), Task("drain", 13, 3), Task("checkpoint", 0, 4), Task("release", 9, 5)]
        for partition in (3, 5):
            membership.in_flight[partition] = 1
        for task in tasks:
            membership.begin(task)
        await self.until_idle()
        reported = [(progress.id.partition, progress.id.handoff) for progress in membership.progress()]
        self.assertEqual((service.calls, reported), (["warm", "warm"], [(1, 11), (2, 12)]))

        membership.keep_only([tasks[0], Task("warm", 14, 2)])
        membership.begin(Task("warm", 14, 2))
        await self.until_idle()
        self.assertEqual(service.calls, ["warm", "warm", "release", "warm"])
        running = sorted(partition for partition, (_, _, task) in membership.running.items() if not task.done())
        self.assertEqual(running, [1, 2, 4, 5])
        for _, _, task in membership.running.values():
            task.cancel()

    async def test_a_stopped_warm_that_is_due_again_before_it_has_ended_begins_anew_afterwards(self):
        membership, service = self.membership, self.membership.service
        membership.pb = types.SimpleNamespace(READY=1, Progress=types.SimpleNamespace, TaskId=types.SimpleNamespace)
        service.hangs, warm = True, Task("warm", 11)
        dropped = ["warm", "warm ended", "warm"]
        for stop, expected in (
            (lambda: membership.stop(0, 11), dropped),
            (lambda: membership.keep_only([]), ["warm", "warm ended", "release", "warm"]),
            # The second time, the first Warm is still about to end: it is not interrupted once more.
            (lambda: (membership.stop(0, 11), membership.begin(Task("warm", 12)), membership.stop(0, 12)), dropped),
        ):
            service.calls, service.may_end = [], asyncio.Event()
            membership.begin(warm)
            await self.until_idle()
            stop()
            await self.until_idle()
            self.assertEqual((service.calls, membership.progress()), (["warm"], []))
            membership.begin(warm)
            await self.until_idle()
            self.assertEqual((service.calls, len(membership.progress())), (["warm"], 1))
            service.may_end.set()
            await self.until_idle()
            self.assertEqual(service.calls, expected)
            membership.stop(0, 11)
            await self.until_idle()

    async def test_the_state_of_a_finished_warm_is_kept_whatever_the_next_stream_lists(self):
        self.membership.pb = types.SimpleNamespace(READY=1, Ack=types.SimpleNamespace)
        self.membership.begin(Task("warm", 3))
        await self.membership.running[0][2]
        # Once the pod is ready, nothing is listed until the old owner has drained.
        self.membership.keep_only([])
        await self.until_idle()
        self.assertEqual((self.membership.service.calls, self.membership.held), (["warm"], {0: 3}))

    async def test_a_new_life_frees_what_a_warm_has_copied(self):
        self.membership.service.hangs = True
        self.membership.begin(Task("warm", 3))
        await self.until_idle()
        await live(self.membership, 8)
        await self.until_idle()
        self.assertEqual(self.membership.service.calls, ["warm", "release"])

    async def test_many_acknowledgements_are_sent_in_several_calls_and_again_if_one_fails(self):
        membership, calls = self.membership, []
        membership.pb = types.SimpleNamespace(AGAIN=3, AckRequest=types.SimpleNamespace)

        async def acked(request, timeout, metadata):
            calls.append(len(request.acks))
            if len(calls) == 1:
                raise asyncio.TimeoutError
            return types.SimpleNamespace(outcomes=[3 if len(calls) == 2 and at == 0 else 1 for at in range(len(request.acks))])

        membership.stub = types.SimpleNamespace(Ack=acked)
        for partition in range(5000):
            membership.ack(types.SimpleNamespace(id=types.SimpleNamespace(partition=partition, handoff=1), kind=1))
        sending = asyncio.create_task(membership.send_acks())
        while membership.acks:
            await asyncio.sleep(0.01)
        sending.cancel()
        self.assertEqual(calls, [4096, 904, 4096, 1])

    async def until_idle(self):
        for _ in range(20):
            await asyncio.sleep(0)  # lets each task go as far as it can

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

    async def test_a_coordinator_that_never_responds_is_left_for_the_next_one(self):
        reached = asyncio.Event()

        def accepted(_, stream):
            stream.close()
            reached.set()

        # The kernel takes connections to it, and nobody accepts them.
        with socket.create_server(("127.0.0.1", 0)) as hung:
            async with await asyncio.start_server(accepted, "127.0.0.1", 0) as other:
                coordinators = [f"127.0.0.1:{it.getsockname()[1]}" for it in (hung, other.sockets[0])]
                lease, patience = 3, 10  # of itself, grpcio waits for 20 s
                pod = Membership(load_stubs(PROTO), coordinators, "default", "a", "127.0.0.1:1", lease, Service())
                running = asyncio.create_task(pod.run())
                await asyncio.wait_for(reached.wait(), patience)
                running.cancel()


if __name__ == "__main__":
    unittest.main()
