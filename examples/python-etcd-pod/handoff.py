"""Decides what a pod does, from a view of the keyspace. No function here waits, reads a clock or talks to anyone.

A view maps each key of the keyspace, without its prefix, to its `Entry`. An entry whose value is None cannot be read. Such a key is
present nevertheless: an unreadable record keeps its partition where it is.
"""

from typing import NamedTuple

# The version of the protocol that this pod speaks.
PROTOCOL = 3


class Pod(NamedTuple):
    """A life of a pod."""

    name: str
    incarnation: int


class Task(NamedTuple):
    """What is due for a partition. Two tasks are the same if all of these fields are."""

    kind: str  # warm, sync, drain, release, forget
    epoch: int
    handoff: int = 0  # the record's create_revision; 0: the task belongs to no handoff


def other_version(config):
    """Returns the version of the protocol that the keyspace speaks by its settings, if this pod does not speak it, otherwise None."""
    spoken = config and config.value and config.value.get("protocol")
    return spoken if spoken not in (None, PROTOCOL) else None


def owns(view, pod, partition):
    """Returns the epoch at which the store says that this life owns the partition, otherwise None."""
    assignment = view.get(f"assignments/{partition}")
    if assignment is None or assignment.value is None:
        return None
    value = assignment.value
    return value.get("epoch") if (value.get("owner"), value.get("incarnation")) == pod else None


def serves(view, pod, partition, held):
    """Returns the epoch whose requests the pod accepts, otherwise None. `held` is the epoch of the state that it has."""
    epoch, record = owns(view, pod, partition), view.get(f"handoffs/{partition}")
    if epoch is None or held != epoch:
        return None
    if record is None:
        return epoch
    if record.value is None:
        return None  # it may say that the log is at rest
    is_old = (record.value.get("old_owner"), record.value.get("old_incarnation")) == pod
    return None if is_old and record.value.get("phase") not in ("Warming", "Ready") else epoch


def due(view, pod, partition, held, has_ended):
    """Returns the task that is due for the partition, otherwise None.

    `has_ended(pod, within_ms)` says whether the key of a dead pod has been gone for this time.
    """
    epoch, record = owns(view, pod, partition), view.get(f"handoffs/{partition}")
    assignment = view.get(f"assignments/{partition}")
    if record is not None and record.value is None or assignment is not None and assignment.value is None:
        return None
    if record is not None:
        value, handoff = record.value, record.create_revision
        phase, old = value.get("phase"), Pod(value.get("old_owner"), value.get("old_incarnation"))
        if (value.get("new_owner"), value.get("new_incarnation")) == pod:
            new_epoch = value.get("epoch")
            if phase == "Warming":
                return Task("warm", new_epoch, handoff)
            if phase == "Syncing" and not acked(view, pod, partition, handoff, "synced"):
                bound = assignment and assignment.value.get("work_ends_within_ms")
                at_rest = is_at_rest(view, old, partition, handoff) and (
                    is_alive(view, old) or not bound or has_ended(old, bound)
                )
                return Task("sync", new_epoch, handoff) if at_rest else None
            return None
        if old == pod:
            if phase == "Syncing" and not acked(view, pod, partition, handoff, "drained"):
                return Task("drain", epoch, handoff)
            if phase == "Complete" and not acked(view, pod, partition, handoff, "released"):
                return Task("release", held or 0, handoff)
            return None
    if epoch is not None and held != epoch:
        # Nobody else writes: the operator who assigned the partition by hand says so.
        return Task("warm", epoch)
    return Task("forget", held) if epoch is None and held is not None else None


def is_alive(view, pod):
    """A registration that cannot be read is alive."""
    entry = view.get(f"pods/{pod.name}")
    return entry is not None and entry.create_revision == pod.incarnation


def is_at_rest(view, old, partition, handoff):
    """Says whether the old owner writes nothing any more, as far as its acknowledgement can tell."""
    if not is_alive(view, old):
        return True
    registration = view[f"pods/{old.name}"].value
    if registration is None:
        return False
    return "drained" not in (registration.get("capabilities") or []) or acked(view, old, partition, handoff, "drained")


def acked(view, pod, partition, handoff, kind):
    """An acknowledgement that cannot be read was not given."""
    entry = view.get(f"pod_acks/{partition}/{pod.name}/{kind}")
    return entry is not None and entry.value is not None and entry.value.get("handoff") == handoff


def partitions(view, pod):
    """Returns the partitions that this life owns, gets or gives up."""
    found = set()
    for key, entry in view.items():
        kind, _, partition = key.partition("/")
        if kind in ("assignments", "handoffs") and partition.isdigit():
            value = entry.value or {}
            parties = [(value.get(f"{role}owner"), value.get(f"{role}incarnation")) for role in ("", "old_", "new_")]
            if pod in parties:
                found.add(int(partition))
    return found
