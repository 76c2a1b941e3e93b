"""The log of each partition as a partition of a Kafka topic.

Each record carries the epoch of its writer as a header. A reader ignores a record whose epoch is below one that it has read
before, so a write that a dead or suspended owner left on its way to the broker has no effect once its successor has written.

Invariants:

* An owner's first record of an epoch (its *claim*, which changes no state) precedes its first response.
* A record is confirmed only after all in-sync replicas have it.
* Nothing waits in the producer for longer than a sixth of the lease, the time that a pod has left when it may write no more.
* One read at a time uses a consumer, and a consumer whose read has failed is not used again.
* A checkpoint is a record of a second topic, and its name is the offset there. Another record is never taken for it.
"""

import asyncio
import functools
import json
import threading
import time

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

EPOCH = "segue-epoch"
# Follows the topic's name.
CHECKPOINTS = "-checkpoints"


class KafkaLog:
    def __init__(self, brokers, topic, lease_ttl):
        self.topic = topic
        self.consumer = {
            "bootstrap.servers": brokers,
            "group.id": f"{topic}-pods",  # required, though offsets are neither committed nor read
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            # How long a broker may wait before it says that this is the end.
            "fetch.wait.max.ms": 10,
        }
        # A new consumer takes half a second until it knows the leaders of the partitions and is connected to them.
        self.idle_consumers = []
        self.message_timeout = int(lease_ttl * 1000 / 6)
        self.loop = asyncio.get_running_loop()

    @functools.cached_property
    def producer(self):
        producer = Producer({
            "bootstrap.servers": self.consumer["bootstrap.servers"],
            "enable.idempotence": True,
            "linger.ms": 1,
            "message.timeout.ms": self.message_timeout,
        })
        # Calls the callbacks of `append`.
        threading.Thread(target=self.poll, args=[producer], daemon=True).start()
        return producer

    def poll(self, producer):
        while True:
            producer.poll(1.0)

    async def connect(self):
        """Connects the producer. That may take longer than a record may wait in it."""
        await asyncio.to_thread(self.producer.list_topics, self.topic, 10.0)

    async def append(self, partition, record):
        """Appends a record. Returns the offset after it."""
        record["appended_at"] = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        return await self.produce(self.topic, partition, record["key"], record, {EPOCH: str(record["epoch"])}) + 1

    async def save(self, partition, checkpoint):
        """Saves a checkpoint. Returns its name."""
        # The same key for all: compaction keeps the newest.
        return str(await self.produce(self.topic + CHECKPOINTS, partition, str(partition), checkpoint, {}))

    async def produce(self, topic, partition, key, value, headers):
        """Appends to a topic. Returns the offset."""
        done = self.loop.create_future()

        def delivered(error, message):
            self.loop.call_soon_threadsafe(finish, error, None if error else message.offset())

        def finish(error, offset):
            if done.cancelled():
                return
            if error:
                done.set_exception(KafkaException(error))
            else:
                done.set_result(offset)

        self.producer.produce(
            topic, partition=partition, key=key, value=json.dumps(value), headers=headers, on_delivery=delivered
        )
        return await done

    async def read(self, partition, begin):
        """Returns the records from this offset up to the end, and the offset after them."""
        records, end = [], begin
        for message in await self.messages(self.topic, partition, begin):
            if message.error() is None:
                records.append(record_of(message))
                end = message.offset() + 1
        return records, max(end, message.offset())

    async def saved(self, partition, name):
        """Returns the checkpoint of this name, or None if it is gone."""
        try:
            messages = await self.messages(self.topic + CHECKPOINTS, partition, int(name), limit=1)
        except KafkaException as error:
            if error.args[0].code() != KafkaError._AUTO_OFFSET_RESET:
                raise
            return None
        found = [json.loads(it.value()) for it in messages if it.error() is None and it.offset() == int(name)]
        return found[0] if found else None

    async def messages(self, topic, partition, begin, limit=None):
        """Returns the messages from this offset up to the end, which is the last of them, but no more than `limit`."""
        given_up = threading.Event()
        try:
            start = TopicPartition(topic, partition, begin)
            return await asyncio.to_thread(self.consume, start, limit, given_up)
        finally:
            # The thread of a read that is cancelled would keep others from theirs.
            given_up.set()

    def consume(self, start, limit, given_up):
        try:
            consumer = self.idle_consumers.pop()
        except IndexError:
            consumer = Consumer(self.consumer)
        try:
            # Of a log that has lost its beginning, offset 0 is an error, unlike "the beginning".
            consumer.assign([start])
            messages = []
            while not given_up.is_set() and len(messages) != limit:
                messages.append(self.next(consumer, start))
                if messages[-1].error():
                    break
            consumer.unassign()
        except BaseException:
            consumer.close()
            raise
        self.idle_consumers.append(consumer)
        return messages

    def next(self, consumer, start):
        """Returns the next message, or the one that tells of the end."""
        message = consumer.poll(10.0)
        if message is None:
            raise TimeoutError(f"no broker responds for partition {start.partition} of {start.topic}")
        if message.error() and message.error().code() != KafkaError._PARTITION_EOF:
            raise KafkaException(message.error())
        return message


def has_timed_out(error):
    """Says whether the producer gave up a record that it may have sent."""
    return error.args[0].code() == KafkaError._MSG_TIMED_OUT


def record_of(message):
    return json.loads(message.value()) | {"epoch": next(int(value) for name, value in message.headers() if name == EPOCH)}
