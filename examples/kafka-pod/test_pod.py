"""Tests of the state in Kafka without a broker: `python -m unittest`, as `cargo test --workspace --test process python_pods::` does."""

import unittest

from pod import FencedState, KafkaWriter
from segue_pod import HandoffContext


def record(key, epoch, sequence):
    return {"key": key, "epoch": epoch, "sequence": sequence, "value": f"{key}{sequence}"}


class Log:
    """A log that another pod writes to as well."""

    def __init__(self, *records):
        self.records = list(records)

    async def connect(self):
        pass

    async def append(self, partition, added):
        self.records.append(added)
        return len(self.records)

    async def read(self, partition, begin):
        return self.records[begin:], len(self.records)


class Fencing(unittest.IsolatedAsyncioTestCase):
    def test_a_record_of_an_epoch_that_was_over_is_ignored(self):
        state = FencedState()
        state.apply([record("a", 5, 1), {"key": "", "epoch": 7}, record("a", 5, 2), record("b", 7, 1)], 4)
        self.assertEqual((state.entries, state.read_to), ({"a": (1, "a1"), "b": (1, "b1")}, 4))

    async def test_the_first_request_of_an_epoch_claims_it_once_and_sees_all_that_precedes_the_claim(self):
        log = Log(record("a", 5, 1))
        writer = KafkaWriter(log, 0)
        await writer.warm(HandoffContext(0, 7))
        log.records.append(record("a", 5, 2))
        for _ in range(2):
            state = await writer.enter(0, 7)
        self.assertEqual(log.records[2:], [{"key": "", "epoch": 7}])
        log.records.append(record("a", 5, 3))
        state.apply(*await log.read(0, state.read_to))
        self.assertEqual(state.entries, {"a": (2, "a2")})


if __name__ == "__main__":
    unittest.main()
