"""Tests of the pod on Kafka with the mock cluster of librdkafka: `python -m unittest`, as `cargo test --workspace --test
python_pods` does."""

import os
import subprocess
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(HERE)), "examples/kafka-pod"))

from kafka_log import KafkaLog  # noqa: E402
from pod import KafkaWriter  # noqa: E402

LEASE = 3


class FirstRequest(unittest.IsolatedAsyncioTestCase):
    def setUp(self):
        command = [sys.executable, os.path.join(HERE, "mock_broker.py"), "persons", "4"]
        self.brokers = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.address = next(line for line in self.brokers.stdout if line.startswith("127.0.0.1:")).strip()

    def tearDown(self):
        self.brokers.kill()
        self.brokers.wait()
        self.brokers.stdout.close()

    async def test_the_first_request_of_a_new_process_is_served(self):
        for epoch in range(1, 6):
            # Each log has a producer of its own, as each process has.
            writer = KafkaWriter(KafkaLog(self.address, "persons", LEASE), 0)
            await writer.warm(1, epoch, "")
            state = await writer.enter(1, epoch)
            self.assertEqual((state.newest, state.claimed), (epoch, epoch))


if __name__ == "__main__":
    unittest.main()
