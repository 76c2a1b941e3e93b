"""A writer pod with its state in Kafka: takes part by gRPC, warms from a checkpoint up to the end of a partition, and fences by
epochs."""

import asyncio
import logging
import pathlib
import sys

from confluent_kafka import KafkaException
from kafka_log import KafkaLog, has_timed_out
from segue_pod import Membership

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python-writer"))

from writer import CheckpointingWriter, State, parser, serve  # noqa: E402


# How often a claim is sent before its request fails.
CLAIMS = 5


class FencedState(State):
    """The state of a partition, without the records of epochs that were over when they were appended."""

    def __init__(self):
        super().__init__()
        self.newest = 0  # the highest epoch read
        self.claimed = 0  # the epoch that this pod has claimed
        self.claiming = asyncio.Lock()
        self.checkpoint = ""  # the newest that is good
        self.may_lack = False  # the log may have a record that this state has not

    def put(self, record):
        if record["epoch"] >= self.newest:
            self.newest = record["epoch"]
            if record["key"]:  # a claim has none
                super().put(record)


class KafkaWriter(CheckpointingWriter):
    """The service: the callbacks of a handoff are those of its base class, on a log and with checkpoints in Kafka."""

    state = FencedState

    async def warm(self, part):
        # Otherwise the first request would wait for it.
        await self.log.connect()
        await super().warm(part)

    async def saved(self, partition, checkpoint):
        state, saved = self.state(), checkpoint and await self.log.saved(partition, checkpoint)
        # Without a checkpoint, or if it is gone, the whole log is read.
        if saved:
            state.entries = {key: tuple(entry) for key, entry in saved["entries"].items()}
            state.read_to, state.newest, state.checkpoint = saved["read_to"], saved["newest"], checkpoint
        return state

    async def checkpoint(self, part):
        """Saves the state and returns the name. All before `read_to` is in `entries`: what this pod appends is confirmed and
        applied in order, and what others have appended since its claim is of earlier epochs."""
        state = self.states[part.partition]
        if not state.may_lack:
            saved = {"entries": state.entries, "read_to": state.read_to, "newest": state.newest}
            state.checkpoint = await self.log.save(part.partition, saved)
        return state.checkpoint

    async def append(self, state, partition, record):
        try:
            await super().append(state, partition, record)
        except BaseException:
            state.may_lack = True
            raise

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
    arguments = arguments.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    writer = KafkaWriter(KafkaLog(arguments.kafka, arguments.topic, arguments.lease_ttl), arguments.warm_time)
    membership = Membership(
        writer,
        coordinators=arguments.coordinator,
        keyspace=arguments.keyspace,
        name=arguments.name,
        address=arguments.listen,
        lease_ttl=arguments.lease_ttl,
        token_file=arguments.token_file,
    )
    return await serve(membership, writer, arguments)


if __name__ == "__main__":
    raise SystemExit(asyncio.run(main()))
