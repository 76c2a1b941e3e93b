"""Tests of the pod on Kafka with the mock cluster of librdkafka: `python -m unittest`, as `cargo test --workspace --test
python_pods` does."""

import asyncio
import os
import subprocess
import sys
import unittest
import unittest.mock

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(HERE)), "examples/kafka-pod"))

import kafka_log  # noqa: E402
from kafka_log import CHECKPOINTS, KafkaLog  # noqa: E402
from pod import KafkaWriter  # noqa: E402
from segue_pod import HandoffContext  # noqa: E402

LEASE = 3
# No record waits for too long in the producer, however busy the machine is.
LONG_LEASE = 60


class WithBrokers(unittest.IsolatedAsyncioTestCase):
    def setUp(self):
        command = [sys.executable, os.path.join(HERE, "mock_broker.py"), "persons", "4"]
        self.brokers = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.address = next(line for line in self.brokers.stdout if line.startswith("127.0.0.1:")).strip()

    def tearDown(self):
        self.brokers.kill()
        self.brokers.wait()
        self.brokers.stdout.close()


class FirstRequest(WithBrokers):
    async def test_the_first_request_of_a_new_process_is_served(self):
        for epoch in range(1, 6):
            # Each log has a producer of its own, as each process has.
            writer = KafkaWriter(KafkaLog(self.address, "persons", LEASE), 0)
            await writer.warm(HandoffContext(1, epoch))
            state = await writer.enter(1, epoch)
            self.assertEqual((state.newest, state.claimed), (epoch, epoch))


class Reads(WithBrokers):
    async def test_reads_one_after_the_other_share_a_consumer_and_each_gets_what_it_asks_for(self):
        with unittest.mock.patch.object(kafka_log, "Consumer", wraps=kafka_log.Consumer) as consumer:
            log, ends = KafkaLog(self.address, "persons", LONG_LEASE), [0, 0]
            for number in range(20):
                partition, record = number % 2, {"key": "a", "epoch": 1, "sequence": number}
                end = await log.append(partition, dict(record))
                records, read_to = await log.read(partition, ends[partition])
                self.assertEqual(([it["sequence"] for it in records], read_to), ([number], end))
                everything, _ = await log.read(partition, 0)
                self.assertEqual([it["sequence"] for it in everything], list(range(partition, number + 1, 2)))
                ends[partition] = end
            self.assertEqual(consumer.call_count, 1)

    async def test_a_read_that_is_cancelled_leaves_its_consumer_to_the_next_one(self):
        with unittest.mock.patch.object(kafka_log, "Consumer", wraps=kafka_log.Consumer) as consumer:
            log = KafkaLog(self.address, "persons", LONG_LEASE)
            for number in range(200):
                end = await log.append(0, {"key": "a", "epoch": 1, "sequence": number})
            for _ in range(20):
                reading = asyncio.create_task(log.read(0, 0))
                await asyncio.sleep(0)
                reading.cancel()
                records, read_to = await log.read(1, 0)
                self.assertEqual((records, read_to), ([], 0))
                records, read_to = await log.read(0, 0)
                self.assertEqual((len(records), read_to), (200, end))
            self.assertLess(consumer.call_count, 20)


class Checkpoints(WithBrokers):
    async def test_a_warm_reads_only_what_was_appended_after_its_checkpoint(self):
        log = KafkaLog(self.address, "persons", LONG_LEASE)
        old, new = KafkaWriter(log, 0), KafkaWriter(log, 0)
        await old.warm(HandoffContext(1, 7))
        state = await old.enter(1, 7)
        for number in range(1, 6):
            await old.append(state, 1, record("a", 7, number))
        name = await old.checkpoint(HandoffContext(1, 7))
        await old.append(state, 1, record("b", 7, 1))
        with unittest.mock.patch.object(log, "read", wraps=log.read) as read:
            await new.warm(HandoffContext(1, 8, checkpoint=name))
        read.assert_called_once_with(1, 6)
        found = new.states[1]
        self.assertEqual((found.entries, found.newest, found.read_to), (state.entries, 7, state.read_to))
        # A record that was late when it was appended stays without effect.
        await log.append(1, record("a", 6, 9))
        await new.sync(HandoffContext(1, 8))
        self.assertEqual(found.entries, state.entries)

    async def test_a_warm_whose_checkpoint_is_gone_reads_the_whole_log(self):
        log = KafkaLog(self.address, "persons", LONG_LEASE)
        await log.append(1, record("a", 7, 1))
        for name in ("0", "17"):
            writer = KafkaWriter(log, 0)
            await writer.warm(HandoffContext(1, 8, checkpoint=name))
            self.assertEqual(writer.states[1].entries, {"a": (1, "a1")})

    async def test_a_state_that_may_lack_a_record_is_not_saved(self):
        log = KafkaLog(self.address, "persons", LONG_LEASE)
        writer = KafkaWriter(log, 0)
        await writer.warm(HandoffContext(1, 7))
        name = await writer.checkpoint(HandoffContext(1, 7))
        state = await writer.enter(1, 7)
        with unittest.mock.patch.object(log, "append", side_effect=TimeoutError), self.assertRaises(TimeoutError):
            await writer.append(state, 1, record("a", 7, 1))
        await writer.append(state, 1, record("b", 7, 1))
        self.assertEqual(await writer.checkpoint(HandoffContext(1, 7)), name)
        self.assertEqual(len(await log.messages("persons" + CHECKPOINTS, 1, 0)), 2)  # that, and the end


def record(key, epoch, sequence):
    return {"key": key, "epoch": epoch, "sequence": sequence, "value": f"{key}{sequence}"}


if __name__ == "__main__":
    unittest.main()
