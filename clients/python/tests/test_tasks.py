"""Tests of the tasks of a pod without a coordinator."""

import asyncio
import types
import unittest

from segue_pod import HandoffContext, Ownership, PermanentFailure
from segue_pod.coordinator import MAX_ACKS, Acks
from segue_pod.proto import pb
from segue_pod.tasks import Tasks


class Service:
    def __init__(self):
        self.calls = []
        self.hangs = False
        self.may_end = None  # an event for which a warm that was cancelled waits

    async def warm(self, part):
        self.calls.append("warm")
        if self.hangs:
            try:
                await asyncio.Event().wait()
            finally:
                if self.may_end:
                    await self.may_end.wait()
                    self.calls.append("warm ended")

    async def release(self, part):
        self.calls.append("release")


def task(kind, handoff, partition=0):
    return pb.Task(id=pb.TaskId(partition=partition, handoff=handoff), epoch=handoff, **{kind: getattr(pb, kind.title())()})


async def until_idle():
    for _ in range(20):
        await asyncio.sleep(0)  # lets each task go as far as it can


class Handoffs(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self):
        self.service, self.ownership = Service(), Ownership("default")
        self.acks = Acks(None)
        self.tasks = Tasks(self.service, self.ownership, self.acks)

    def acked(self):
        return [ack.kind for ack in self.acks.unsent.values()]

    async def test_a_release_that_waits_for_a_request_is_finished_before_a_later_task_begins(self):
        self.ownership.in_flight[0] = 1
        for due in (task("release", 1), task("warm", 2), task("warm", 3)):
            self.tasks.begin(due)
            await until_idle()
        self.assertEqual(self.service.calls, [])
        self.ownership.in_flight[0] = 0
        await self.ownership.notify()
        await self.tasks.running[0].task
        self.assertEqual(self.service.calls, ["release", "warm"])

    async def test_a_release_leaves_the_state_of_a_later_epoch_alone(self):
        for due, calls in ((task("warm", 3), ["warm"]), (task("release", 2), ["warm"]), (task("release", 3), ["warm", "release"])):
            self.tasks.begin(due)
            await self.tasks.running[0].task
            self.assertEqual(self.service.calls, calls)

    async def test_a_stream_stops_what_its_first_event_does_not_list_and_frees_what_a_warm_has_copied(self):
        tasks, service = self.tasks, self.service
        stuck, service.hangs = asyncio.Event(), True
        service.checkpoint = lambda part: stuck.wait()
        tasks.held[5] = 9
        due = [task("warm", 11, 1), task("warm", 12, 2), task("drain", 13, 3), task("checkpoint", 0, 4), task("release", 9, 5)]
        for partition in (3, 5):
            self.ownership.in_flight[partition] = 1
        for it in due:
            tasks.begin(it)
        await until_idle()
        reported = [(progress.id.partition, progress.id.handoff) for progress in tasks.progress()]
        self.assertEqual((service.calls, reported), (["warm", "warm"], [(1, 11), (2, 12)]))

        tasks.keep_only([due[0], task("warm", 14, 2)])
        tasks.begin(task("warm", 14, 2))
        await until_idle()
        self.assertEqual(service.calls, ["warm", "warm", "release", "warm"])
        running = sorted(partition for partition, it in tasks.running.items() if not it.task.done())
        self.assertEqual(running, [1, 2, 4, 5])
        for it in tasks.running.values():
            it.task.cancel()

    async def test_a_stopped_warm_that_is_due_again_before_it_has_ended_begins_anew_afterwards(self):
        tasks, service = self.tasks, self.service
        service.hangs, warm = True, task("warm", 11)
        dropped = ["warm", "warm ended", "warm"]
        for stop, expected in (
            (lambda: tasks.stop(0, 11), dropped),
            (lambda: tasks.keep_only([]), ["warm", "warm ended", "release", "warm"]),
            # The second time, the first warm is still about to end: it is not interrupted once more.
            (lambda: (tasks.stop(0, 11), tasks.begin(task("warm", 12)), tasks.stop(0, 12)), dropped),
        ):
            service.calls, service.may_end = [], asyncio.Event()
            tasks.begin(warm)
            await until_idle()
            stop()
            await until_idle()
            self.assertEqual((service.calls, tasks.progress()), (["warm"], []))
            tasks.begin(warm)
            await until_idle()
            self.assertEqual((service.calls, len(tasks.progress())), (["warm"], 1))
            service.may_end.set()
            await until_idle()
            self.assertEqual(service.calls, expected)
            tasks.stop(0, 11)
            await until_idle()

    async def test_the_state_of_a_finished_warm_is_kept_whatever_the_next_stream_lists(self):
        self.tasks.begin(task("warm", 3))
        await self.tasks.running[0].task
        # Once the pod is ready, nothing is listed until the old owner has drained.
        self.tasks.keep_only([])
        await until_idle()
        self.assertEqual((self.service.calls, self.tasks.held), (["warm"], {0: 3}))

    async def test_a_new_life_frees_what_the_earlier_one_has_copied_in_part_and_in_full(self):
        self.tasks.begin(task("warm", 3))
        await self.tasks.running[0].task
        self.service.hangs = True
        self.tasks.begin(task("warm", 4, 1))
        await until_idle()
        self.tasks.end_life()
        # What is due in the next life begins once the state of the earlier one is free.
        self.tasks.begin(task("warm", 5))
        await until_idle()
        self.assertEqual((self.service.calls, self.tasks.held), (["warm", "warm", "release", "release", "warm"], {}))
        self.tasks.stop(0, 5)

    async def test_a_checkpoint_is_reported_with_its_name_and_epoch_and_gives_way_to_a_drain(self):
        stuck = asyncio.Event()

        async def checkpoint(part):
            await stuck.wait()
            return f"{part.partition}@{part.epoch}"

        self.service.checkpoint = checkpoint
        self.tasks.begin(task("checkpoint", 0))
        await asyncio.sleep(0)
        self.tasks.begin(task("drain", 4))
        await self.tasks.running[0].task
        self.assertEqual(self.acked(), [pb.DRAINED])
        stuck.set()
        self.tasks.begin(task("checkpoint", 0))
        await self.tasks.running[0].task
        ack = self.acks.unsent[0, 0, pb.CHECKPOINTED]
        self.assertEqual((ack.checkpoint, ack.epoch), (b"0@0", 0))

    async def test_callbacks_learn_what_their_task_says(self):
        parts = []

        async def noted(part):
            parts.append(part)

        service = types.SimpleNamespace(warm=noted, sync=noted, leaving=noted, drain=noted, release=noted)
        tasks = Tasks(service, self.ownership, self.acks)
        due = [task(kind, 7 + at) for at, kind in enumerate(("warm", "sync", "leaving", "drain", "release"))]
        warm, sync, leaving, drain, release = due
        warm.warm.from_address, warm.warm.checkpoint, sync.sync.from_address = "a:1", b"0@6", "a:2"
        leaving.leaving.to_address, drain.drain.to_address, release.release.to_address = "b:1", "b:2", "b:3"
        for it in due:
            tasks.begin(it)
            await until_idle()
        self.assertEqual(parts, [
            HandoffContext(0, 7, from_address="a:1", checkpoint="0@6"), HandoffContext(0, 8, from_address="a:2"),
            HandoffContext(0, 9, to_address="b:1"), HandoffContext(0, 10, to_address="b:2"), HandoffContext(0, 11, to_address="b:3"),
        ])
        # Nobody waits for `leaving`.
        self.assertEqual(self.acked(), [pb.READY, pb.SYNCED, pb.DRAINED, pb.RELEASED])

    async def test_a_task_whose_callback_the_service_lacks_is_done(self):
        tasks = Tasks(object(), self.ownership, self.acks)
        for kind in ("warm", "drain", "release"):
            tasks.begin(task(kind, 7))
            await tasks.running[0].task
        self.assertEqual(self.acked(), [pb.READY, pb.DRAINED, pb.RELEASED])

    async def test_a_failure_is_reported_and_says_whether_it_is_permanent(self):
        for error, permanent in ((OSError("no route"), False), (PermanentFailure("no disk"), True)):

            async def warm(part):
                raise error

            self.service.warm = warm
            with self.assertLogs("segue_pod"):
                self.tasks.begin(task("warm", 3))
                await until_idle()
            (ack,) = self.acks.unsent.values()
            self.assertEqual((ack.kind, ack.failure, ack.permanent), (pb.READY, str(error), permanent))
            self.tasks.stop(0, 3)


class Acknowledgements(unittest.IsolatedAsyncioTestCase):
    async def test_many_are_sent_in_several_calls_and_again_if_one_fails(self):
        calls = []

        class Coordinator:
            resume = b""

            async def call(self, name, request, timeout):
                calls.append(len(request.acks))
                if len(calls) == 1:
                    raise TimeoutError
                again = len(calls) == 2
                return pb.AckResponse(outcomes=[pb.AGAIN if again and at == 0 else pb.ACCEPTED for at in range(len(request.acks))])

        acks = Acks(Coordinator())
        for partition in range(5000):
            acks.add(pb.Ack(id=pb.TaskId(partition=partition, handoff=1), kind=pb.READY))
        sending = asyncio.create_task(acks.send_all())
        while acks.unsent:
            await asyncio.sleep(0.01)
        sending.cancel()
        self.assertEqual(calls, [MAX_ACKS, 904, MAX_ACKS, 1])


if __name__ == "__main__":
    unittest.main()
