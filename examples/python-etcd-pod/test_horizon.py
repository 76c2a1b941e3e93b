"""Tests of `horizon.py`: `python -m unittest`, as `cargo test --workspace --test process python_pods::` does."""

import unittest

from horizon import LAST_EPOCH, Horizon
from test_handoff import entry


def config(floor=None):
    return entry({"partitions": 4} | ({} if floor is None else {"epoch_floor": floor}), 3)


def seen(revision, floor=None):
    """A pod whose life began at a snapshot of this revision."""
    horizon = Horizon()
    horizon.saw(revision, config(floor))
    horizon.begin_life()
    return horizon


class Lives(unittest.TestCase):
    def test_a_life_goes_on_while_the_store_does(self):
        horizon = seen(100)
        for revision in (100, 101):
            horizon.saw(revision, config())
            self.assertFalse(horizon.ends_life())
        self.assertIsNone(horizon.raised())

    def test_a_store_that_goes_back_ends_the_life_and_the_floor_rises_above_what_was_used(self):
        horizon = seen(100, 7)
        horizon.saw_changes([("a", entry({}, 120)), ("b", None)], config(7))
        horizon.saw(110, config())
        self.assertTrue(horizon.ends_life())
        self.assertEqual(horizon.raised(), {"partitions": 4, "epoch_floor": 128})
        horizon.saw(111, config(128))
        self.assertIsNone(horizon.raised())
        self.assertTrue(horizon.ends_life(), "the raised floor ends it just as well")
        horizon.begin_life()
        self.assertFalse(horizon.ends_life())

    def test_a_floor_that_another_participant_raises_ends_the_life(self):
        horizon = seen(100)
        horizon.saw_changes([], config(90))
        self.assertTrue(horizon.ends_life())

    def test_a_floor_that_is_written_too_low_later_is_raised_again(self):
        horizon = seen(100)
        horizon.saw(50, config(101))
        horizon.begin_life()
        horizon.saw(51, config())
        self.assertTrue(horizon.ends_life())
        self.assertEqual(horizon.raised()["epoch_floor"], 101)

    def test_settings_that_cannot_be_read_are_left_alone(self):
        for unreadable in (None, entry(None), entry({"epoch_floor": "7"}), entry({"epoch_floor": LAST_EPOCH + 1})):
            horizon = seen(100)
            horizon.saw(50, unreadable)
            self.assertIsNone(horizon.raised())


if __name__ == "__main__":
    unittest.main()
