"""Tests of `handoff.py`: `python -m unittest`, as `cargo test --workspace --test process python_pods::` does."""

import types
import unittest

from handoff import PROTOCOL, Pod, Task, due, other_version, partitions, serves

OLD, NEW = Pod("a", 10), Pod("b", 20)
BOTH = {"a": OLD, "b": NEW}


def entry(value, created=1):
    return types.SimpleNamespace(value=value, create_revision=created, mod_revision=created)


def world(phase=None, owner=OLD, epoch=5, acks=(), alive="ab", capabilities=("sync", "drained"), bound=None):
    """Partition 7 of `owner`, and its handoff 30 from OLD to NEW if it is in a phase."""
    view = {f"pods/{name}": entry({"capabilities": list(capabilities)}, BOTH[name].incarnation) for name in alive}
    assignment = {"owner": owner.name, "incarnation": owner.incarnation, "epoch": epoch, "work_ends_within_ms": bound}
    view["assignments/7"] = entry(assignment)
    if phase:
        parties = {"old_owner": "a", "old_incarnation": 10, "new_owner": "b", "new_incarnation": 20}
        view["handoffs/7"] = entry({**parties, "phase": phase, "epoch": 9}, 30)
    for pod, kind, handoff in acks:
        view[f"pod_acks/7/{pod}/{kind}"] = entry({"handoff": handoff})
    return view


def task(view, pod, held, ended=False):
    return due(view, pod, 7, held, lambda pod, within: ended)


class Versions(unittest.TestCase):
    def test_only_another_version_of_the_protocol_keeps_the_pod_out(self):
        settings = [{"partitions": 4}, {"protocol": PROTOCOL}, None, {"protocol": PROTOCOL + 1}, {"protocol": 2}]
        spoken = [other_version(entry(value)) for value in settings]
        self.assertEqual([other_version(None), *spoken], [None, None, None, None, PROTOCOL + 1, 2])


class Requests(unittest.TestCase):
    def test_the_old_owner_serves_until_its_log_must_be_at_rest(self):
        self.assertEqual([serves(world(phase), OLD, 7, 5) for phase in ("Warming", "Ready", "Syncing")], [5, 5, None])

    def test_it_serves_again_after_a_cancel(self):
        self.assertEqual(serves(world(), OLD, 7, 5), 5)

    def test_the_new_owner_serves_from_the_flip_on(self):
        self.assertEqual([serves(world(phase), NEW, 7, 9) for phase in ("Ready", "Syncing")], [None, None])
        self.assertEqual(serves(world("Switching", NEW, 9), NEW, 7, 9), 9)

    def test_what_an_earlier_life_owned_is_not_served(self):
        self.assertIsNone(serves(world(), Pod("a", 11), 7, 5))

    def test_nothing_is_served_without_the_state_of_that_epoch(self):
        self.assertEqual([serves(world(), OLD, 7, held) for held in (None, 4)], [None, None])

    def test_an_unreadable_record_is_not_a_missing_one(self):
        self.assertIsNone(serves(world() | {"handoffs/7": entry(None)}, OLD, 7, 5))


class Tasks(unittest.TestCase):
    def test_the_new_owner_warms(self):
        self.assertEqual(task(world("Warming"), NEW, None), Task("warm", 9, 30))

    def test_the_tail_is_read_once_the_old_owner_has_drained(self):
        self.assertIsNone(task(world("Syncing"), NEW, 9))
        self.assertIsNone(task(world("Syncing", acks=[("a", "drained", 29)]), NEW, 9))
        self.assertEqual(task(world("Syncing", acks=[("a", "drained", 30)]), NEW, 9), Task("sync", 9, 30))

    def test_nobody_waits_for_an_old_owner_that_is_dead_or_cannot_drain(self):
        self.assertEqual(task(world("Syncing", alive="b"), NEW, 9), Task("sync", 9, 30))
        self.assertEqual(task(world("Syncing", capabilities=["sync"]), NEW, 9), Task("sync", 9, 30))

    def test_a_later_life_of_the_old_owner_is_another_pod(self):
        self.assertEqual(task(world("Syncing") | {"pods/a": entry({"capabilities": ["drained"]}, 11)}, NEW, 9), Task("sync", 9, 30))

    def test_an_unreadable_old_owner_is_waited_for(self):
        self.assertIsNone(task(world("Syncing") | {"pods/a": entry(None, 10)}, NEW, 9))

    def test_the_bound_of_a_dead_old_owner_is_waited_out(self):
        view = world("Syncing", alive="b", bound=500)
        self.assertIsNone(task(view, NEW, 9))
        self.assertEqual(task(view, NEW, 9, ended=True), Task("sync", 9, 30))

    def test_the_old_owner_drains_and_releases_once(self):
        self.assertEqual(task(world("Syncing"), OLD, 5), Task("drain", 5, 30))
        self.assertIsNone(task(world("Syncing", acks=[("a", "drained", 30)]), OLD, 5))
        self.assertIsNone(task(world("Switching", NEW, 9), OLD, 5))
        self.assertEqual(task(world("Complete", NEW, 9), OLD, 5), Task("release", 5, 30))
        self.assertIsNone(task(world("Complete", NEW, 9, acks=[("a", "released", 30)]), OLD, 5))

    def test_the_state_of_a_cancelled_handoff_is_forgotten(self):
        self.assertEqual(task(world(), NEW, 9), Task("forget", 9))

    def test_state_is_kept_while_a_record_cannot_be_read(self):
        self.assertIsNone(task(world() | {"assignments/7": entry(None)}, NEW, 9))

    def test_a_partition_that_was_assigned_by_hand_is_warmed(self):
        self.assertEqual(task(world(owner=NEW, epoch=6), NEW, None), Task("warm", 6))

    def test_a_pod_is_concerned_with_what_it_owns_gets_or_gives_up(self):
        found = [partitions(world("Warming"), pod) for pod in (OLD, NEW, Pod("a", 11))]
        self.assertEqual(found, [{7}, {7}, set()])


if __name__ == "__main__":
    unittest.main()
