"""Counts the partitions that Kafka's cooperative sticky assignor moves in the cases of `benches/strategies.rs`.

The assignor is `CooperativeStickyAssignor` of kafka-python, a port of the Java client's (KIP-429 on top of KIP-54) by the
authors of kafka-python. The script calls it as a group leader does: in a first rebalance the old owner gives up the partitions
that move, and in a second one the new owner gets them. A partition counts as moved once. Times are not compared, because the
port is in Python. For the same reason the largest case is left out: 4,096 partitions already take seconds.
"""

import sys
from types import SimpleNamespace

from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.structs import TopicPartition

CASES = [(3, 64), (10, 256), (30, 4096)]
TOPIC = "partitions"


def rebalance(partitions, owned):
    """Returns the partitions of each member after one rebalance, given those that it has."""
    cluster = SimpleNamespace(
        topics=lambda: {TOPIC},
        partitions_for_topic=lambda topic: set(range(partitions)),
    )
    members = []
    for name, numbers in owned.items():
        assignor = CooperativeStickyAssignor()
        assignor.member_assignment = [TopicPartition(TOPIC, number) for number in sorted(numbers)]
        members.append(SimpleNamespace(member_id=name, metadata=assignor.metadata([TOPIC])))
    placed = CooperativeStickyAssignor().assign(cluster, members)
    return {
        name: {number for _, numbers in assignment.assigned_partitions for number in numbers}
        for name, assignment in placed.items()
    }


def place(partitions, owned):
    """Rebalances until every partition is assigned. Returns the partitions of each member."""
    for _ in range(3):
        owned = rebalance(partitions, owned)
        if sum(map(len, owned.values())) == partitions:
            return owned
    sys.exit(f"cooperative_sticky.py: {partitions} partitions are not all assigned after three rebalances")


def moves(before, after):
    """Returns how many partitions have another owner than before."""
    return sum(len(numbers - before.get(name, set())) for name, numbers in after.items())


def main():
    for pods, partitions in CASES:
        names = [f"writer-{number:03}" for number in range(pods + 1)]
        first = place(partitions, {name: set() for name in names[:pods]})
        loads = sorted(map(len, first.values()))
        joined = place(partitions, {**first, names[pods]: set()})
        joins = moves(first, joined)
        left = {name: numbers for name, numbers in joined.items() if name != names[pods // 2]}
        leaves = moves(joined, place(partitions, left))
        print(f"| {pods} | {partitions} | Kafka | {loads[0]} – {loads[-1]} | {joins} | {leaves} | – |")


if __name__ == "__main__":
    main()
