"""Decides when an owner makes a checkpoint, and how long a new owner waits for one. As in `handoff.py`, no function here waits, reads
a clock or talks to anyone: `now` is an argument, in seconds.

Nothing depends on a checkpoint but where the next owner starts. An owner makes one of each partition per interval, and one more when
the partition is about to move and its new owner has not begun to warm.
"""

from typing import NamedTuple

from handoff import Pod, is_alive, owns

LEAST_INTERVAL_PER_PARTITION = 1 / 500  # a keyspace makes at most 500 checkpoints per second
DEFAULT_TIMEOUT = 10
GOLDEN = 0x9E3779B97F4A7C15


class Times(NamedTuple):
    interval: float  # between two checkpoints of a partition
    timeout: float  # how long a new owner waits for one


def times(view):
    """Returns the times of the keyspace, or None if its pods make no checkpoints."""
    config = view.get("config")
    planning = (config and config.value or {}).get("planning")
    if not isinstance(planning, dict):
        return None

    def seconds(name):
        value = planning.get(name)
        return value / 1000 if isinstance(value, int) and value > 0 else None

    interval = seconds("checkpoint_interval_ms")
    if interval is None:
        return None
    least = config.value.get("partitions", 0) * LEAST_INTERVAL_PER_PARTITION
    timeout, warm = seconds("checkpoint_timeout_ms") or DEFAULT_TIMEOUT, seconds("warm_timeout_ms")
    # A wait as long as `warm_timeout` would cancel every handoff from an owner that is stuck.
    return Times(max(interval, least), timeout if warm is None else min(timeout, warm / 2))


def newest(view, partition):
    """Returns the name of the checkpoint to start from, or "" if there is none."""
    return (value(view, f"checkpoints/{partition}") or {}).get("checkpoint") or ""


def record(view, pod, partition, epoch, name, at):
    """Returns what to record about a checkpoint that the pod made at this epoch, or None if it owns that epoch no more."""
    if owns(view, pod, partition) != epoch:
        return None
    handoff = view.get(f"handoffs/{partition}")
    # The checkpoint answers a handoff that has begun meanwhile as well.
    asked_by = handoff.create_revision if handoff else 0
    made = {"partition": partition, "checkpoint": name, "pod_name": pod.name, "epoch": epoch, "taken_at": at}
    return {**made, "handoff": asked_by}


class Checkpoints:
    """The schedule of a pod's own partitions, and its waits for the checkpoints of others."""

    def __init__(self):
        self.began = {}  # partition: (the epoch and the record that its interval began with, when it began)
        self.waits = {}  # partition: (the handoff that waits, since when)
        self.late = {}  # a life of a pod: the newest checkpoint of a partition that it owns as a wait for it was over

    def due(self, view, pod, partition, now):
        """Returns the epoch of which this owner makes a checkpoint now, otherwise None."""
        at, epoch = times(view), owns(view, pod, partition)
        if at is None or epoch is None:
            self.began.pop(partition, None)
            return None
        began_with = epoch, recorded_at(view, partition)
        if self.began.get(partition, (None, 0))[0] != began_with:
            self.began[partition] = began_with, now
        handoff = view.get(f"handoffs/{partition}")
        if handoff is not None:
            if (handoff.value or {}).get("phase") != "Warming":
                return None  # requests are held, or will be
            if asks(view, partition, handoff):
                return epoch
        # The moments of different partitions are spread over the interval.
        shift = partition * GOLDEN % 2**64 / 2**64 * at.interval
        began = self.began[partition][1]
        return epoch if (now + shift) // at.interval > (began + shift) // at.interval else None

    def waits_until(self, view, partition, handoff, now):
        """Returns until when the new owner of this handoff waits before it warms, or None if it may warm now."""
        old = awaited(view, partition, handoff)
        if old is None:
            return None
        if self.waits.get(partition, (None, 0))[0] != handoff:
            self.waits[partition] = handoff, now
        until = self.waits[partition][1] + times(view).timeout
        if now >= until:
            self.late = {life: last for life, last in self.late.items() if is_alive(view, life)}
            self.late.setdefault(old, made_last(view, old))
        # A pod that has let a new owner wait in vain lets no other one wait before it has made a checkpoint.
        if old in self.late:
            if made_last(view, old) <= self.late[old]:
                return None
            del self.late[old]
        return until


def asks(view, partition, handoff):
    """Says whether a handoff's new owner would start from a checkpoint that the old owner has not made yet."""
    recorded = (value(view, f"checkpoints/{partition}") or {}).get("handoff")
    is_move = handoff.value is not None and handoff.value.get("old_owner") is not None
    return is_move and handoff.value.get("phase") == "Warming" and recorded != handoff.create_revision


def awaited(view, partition, handoff):
    """Returns the life of the pod whose checkpoint this handoff waits for, or None if it waits for none."""
    entry = view.get(f"handoffs/{partition}")
    if times(view) is None or entry is None or entry.create_revision != handoff or not asks(view, partition, entry):
        return None
    old = Pod(entry.value["old_owner"], entry.value.get("old_incarnation"))
    able = "checkpoint" in ((value(view, f"pods/{old.name}") or {}).get("capabilities") or [])
    return old if able and is_alive(view, old) and owns(view, old, partition) is not None else None


def recorded_at(view, partition):
    entry = view.get(f"checkpoints/{partition}")
    return entry.mod_revision if entry else 0


def made_last(view, pod):
    """Returns when the pod recorded its last checkpoint."""
    records = (entry for key, entry in view.items() if key.startswith("checkpoints/"))
    return max((it.mod_revision for it in records if (it.value or {}).get("pod_name") == pod.name), default=0)


def value(view, key):
    entry = view.get(key)
    return entry and entry.value
