"""Tests of `checkpoint.py`: `python -m unittest`, as `cargo test --workspace --test process python_pods::` does."""

import unittest

from checkpoint import Checkpoints, Times, newest, record, times
from handoff import Pod
from test_handoff import NEW, OLD, entry, world

EVERY, TIMEOUT = 60, 5
PLANNING = {"checkpoint_interval_ms": EVERY * 1000, "checkpoint_timeout_ms": TIMEOUT * 1000}
ABLE = ["sync", "drained", "checkpoint"]


def site(phase=None, recorded=None, planning=PLANNING, **others):
    """Partition 7 of `world`, in a keyspace whose pods make checkpoints. `recorded`: (the revision of the record, its handoff)."""
    view = world(phase, **{"capabilities": ABLE, **others}) | {"config": entry({"partitions": 64, "planning": planning})}
    if recorded is not None:
        revision, handoff = recorded
        view["checkpoints/7"] = entry({"checkpoint": "7-5", "pod_name": "a", "epoch": 5, "handoff": handoff}, revision)
    return view


class Settings(unittest.TestCase):
    def test_there_are_no_checkpoints_without_a_readable_interval(self):
        for planning in (None, 7, {}, {"checkpoint_interval_ms": 0}, {"checkpoint_interval_ms": "60s"}):
            self.assertIsNone(times(site(planning=planning)))
        self.assertIsNone(times({}))

    def test_a_keyspace_makes_at_most_500_per_second_and_a_wait_is_shorter_than_a_warm_up(self):
        self.assertEqual(times(site()), Times(EVERY, TIMEOUT))
        self.assertEqual(times(site(planning={"checkpoint_interval_ms": 1})), Times(64 / 500, 10))
        self.assertEqual(times(site(planning=PLANNING | {"warm_timeout_ms": 4000})).timeout, 2)


class Owners(unittest.TestCase):
    def test_an_owner_makes_one_in_each_interval(self):
        pod, view = Checkpoints(), site()
        due = [pod.due(view, OLD, 7, now) for now in range(0, 2 * EVERY)]
        first = due.index(5)
        self.assertTrue(0 < first <= EVERY)
        self.assertEqual(due, [None] * first + [5] * (2 * EVERY - first), "it is due until it is recorded")
        view = site(recorded=(50, 0))
        due = [pod.due(view, OLD, 7, now) for now in range(first, first + EVERY + 1)]
        self.assertEqual(due, [None] * EVERY + [5])

    def test_the_moments_of_partitions_are_spread(self):
        moments = set()
        for partition in range(16):
            pod, view = Checkpoints(), site()
            view[f"assignments/{partition}"] = view["assignments/7"]
            moments.add([pod.due(view, OLD, partition, now) for now in range(EVERY + 1)].index(5))
        self.assertGreater(len(moments), 12)

    def test_one_more_is_due_before_a_move_and_none_while_requests_are_held(self):
        self.assertEqual(Checkpoints().due(site("Warming"), OLD, 7, 0), 5)
        self.assertEqual(Checkpoints().due(site("Warming", recorded=(50, 29)), OLD, 7, 0), 5)
        self.assertIsNone(Checkpoints().due(site("Warming", recorded=(50, 30)), OLD, 7, 0))
        for phase in ("Ready", "Syncing", "Switching"):
            pod = Checkpoints()
            self.assertEqual([pod.due(site(phase), OLD, 7, now) for now in (0, 2 * EVERY)], [None, None])

    def test_only_the_owner_makes_and_records_any(self):
        self.assertIsNone(Checkpoints().due(site("Warming"), NEW, 7, 0))
        self.assertIsNone(record(site(), OLD, 7, 4, "x", 0))
        self.assertIsNone(record(site(), NEW, 7, 5, "x", 0))
        self.assertIsNone(record(site(), Pod("a", 11), 7, 5, "x", 0))

    def test_the_record_names_the_handoff_that_waits_for_it(self):
        self.assertEqual([record(site(phase), OLD, 7, 5, "x", 0)["handoff"] for phase in (None, "Warming")], [0, 30])


class NewOwners(unittest.TestCase):
    def test_it_waits_until_the_checkpoint_is_there_or_the_time_is_over(self):
        pod = Checkpoints()
        self.assertEqual(pod.waits_until(site("Warming"), 7, 30, 100), 100 + TIMEOUT)
        self.assertEqual(pod.waits_until(site("Warming"), 7, 30, 103), 100 + TIMEOUT)
        self.assertIsNone(pod.waits_until(site("Warming", recorded=(50, 30)), 7, 30, 103))
        self.assertIsNone(pod.waits_until(site("Warming"), 7, 30, 100 + TIMEOUT))
        self.assertIsNone(pod.waits_until(site("Warming"), 7, 30, 101 + TIMEOUT), "a wait that is over does not begin anew")

    def test_an_owner_that_was_waited_for_in_vain_is_waited_for_again_once_it_has_made_one(self):
        pod, other = Checkpoints(), site("Warming")
        other["handoffs/7"].create_revision = 31
        for now in (100, 100 + TIMEOUT):
            last = pod.waits_until(site("Warming"), 7, 30, now)
        self.assertIsNone(last)
        self.assertIsNone(pod.waits_until(other, 7, 31, 110))
        other |= {"checkpoints/8": entry({"pod_name": "a"}, 60)}
        self.assertEqual(pod.waits_until(other, 7, 31, 111), 110 + TIMEOUT)

    def test_it_does_not_wait_for_a_pod_that_is_dead_or_makes_none(self):
        later_life = site("Warming") | {"pods/a": entry({"capabilities": ABLE}, 11)}
        lacks = {"capabilities": ["sync"]}, {"planning": {}}, {"alive": "b"}
        for view in (later_life, *(site("Warming", **what) for what in lacks)):
            self.assertIsNone(Checkpoints().waits_until(view, 7, 30, 0))

    def test_it_starts_from_the_newest(self):
        self.assertEqual([newest(site(recorded=recorded), 7) for recorded in (None, (50, 0))], ["", "7-5"])


if __name__ == "__main__":
    unittest.main()
