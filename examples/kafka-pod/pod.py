"""A writer pod with its state in Kafka: takes part by gRPC, warms up to the end of a partition, and fences by epochs."""

import asyncio
import logging
import pathlib
import sys

from confluent_kafka import KafkaException
from kafka_log import KafkaLog, has_timed_out

EXAMPLES = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(EXAMPLES / "python-grpc-pod"), str(EXAMPLES / "python-writer")]

from membership import Membership, load_stubs  # noqa: E402
from writer import State, Writer, parser, serve  # noqa: E402


# How often a claim is sent before its request fails.
CLAIMS = 5


class FencedState(State):
    """The state of a partition, without the records of epochs that were over when they were appended."""

    def __init__(self):
        super().__init__()
        self.newest = 0  # the highest epoch read
        self.claimed = 0  # the epoch that this pod has claimed
        self.claiming = asyncio.Lock()

    def put(self, record):
        if record["epoch"] >= self.newest:
            self.newest = record["epoch"]
            if record["key"]:  # a claim has none
                super().put(record)


class KafkaWriter(Writer):
    """The service: the callbacks of a handoff are those of its base class, on a log in Kafka."""

    state = FencedState

    async def warm(self, partition, epoch, from_address):
        # Otherwise the first request would wait for it.
        await self.log.connect()
        await super().warm(partition, epoch, from_address)

    async def enter(self, partition, epoch):
        """Returns the state for a request. The first request of an epoch shuts earlier epochs out of the log, and reads what they
        wrote until then."""
        state = self.states[partition]
        async with state.claiming:
            if state.claimed < epoch:
                await self.claim(partition, epoch)
                state.apply(*await self.log.read(partition, state.read_to))
                state.claimed = epoch
        return state

    async def claim(self, partition, epoch):
        """Appends a claim, again if it has timed out: a new producer gets its id from the brokers first. A claim changes no state,
        so a second one does no harm."""
        for attempt in range(1, CLAIMS + 1):
            try:
                return await self.log.append(partition, {"key": "", "epoch": epoch})
            except KafkaException as error:
                if attempt == CLAIMS or not has_timed_out(error):
                    raise


async def main():
    arguments = parser(__doc__)
    arguments.add_argument("--coordinator", action="append", required=True, help="host:port; several are tried in turn")
    arguments.add_argument("--token-file", help="file of the token that the coordinators require")
    arguments.add_argument("--kafka", required=True, help="brokers: host:port,host:port")
    arguments.add_argument("--topic", required=True, help="has as many partitions as the keyspace")
    arguments.add_argument("--proto", default=EXAMPLES.parent / "coordination/proto", help="folder of segue/v1/pods.proto")
    arguments = arguments.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    writer = KafkaWriter(KafkaLog(arguments.kafka, arguments.topic, arguments.lease_ttl), arguments.warm_time)
    membership = Membership(
        load_stubs(arguments.proto),
        arguments.coordinator,
        arguments.keyspace,
        arguments.name,
        arguments.listen,
        arguments.lease_ttl,
        writer,
        arguments.token_file,
    )
    return await serve(membership, writer, arguments)


if __name__ == "__main__":
    raise SystemExit(asyncio.run(main()))
