"""The log of each partition as a partition of a Kafka topic.

Each record carries the epoch of its writer as a header. A reader ignores a record whose epoch is below one that it has read
before, so a write that a dead or suspended owner left on its way to the broker has no effect once its successor has written.

Invariants:

* An owner's first record of an epoch (its *claim*, which changes no state) precedes its first response.
* A record is confirmed only after all in-sync replicas have it.
* Nothing waits in the producer for longer than a sixth of the lease, the time that a pod has left when it may write no more.
* One read at a time uses a consumer, and a consumer whose read has failed is not used again.
"""

import asyncio
import functools
import json
import threading
import time

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

EPOCH = "segue-epoch"


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
        done = self.loop.create_future()
        record["appended_at"] = time.clock_gettime_ns(time.CLOCK_MONOTONIC)

        def delivered(error, message):
            self.loop.call_soon_threadsafe(finish, error, None if error else message.offset() + 1)

        def finish(error, offset):
            if done.cancelled():
                return
            if error:
                done.set_exception(KafkaException(error))
            else:
                done.set_result(offset)

        self.producer.produce(
            self.topic,
            partition=partition,
            key=record["key"],
            value=json.dumps(record),
            headers={EPOCH: str(record["epoch"])},
            on_delivery=delivered,
        )
        return await done

    async def read(self, partition, begin):
        """Returns the records from this offset up to the end, and the offset after them."""
        given_up = threading.Event()
        try:
            return await asyncio.to_thread(self.read_to_end, partition, begin, given_up)
        finally:
            # The thread of a read that is cancelled would keep others from theirs.
            given_up.set()

    def read_to_end(self, partition, begin, given_up):
        try:
            consumer = self.idle_consumers.pop()
        except IndexError:
            consumer = Consumer(self.consumer)
        try:
            found = self.consume(consumer, partition, begin, given_up)
            consumer.unassign()
        except BaseException:
            consumer.close()
            raise
        self.idle_consumers.append(consumer)
        return found

    def consume(self, consumer, partition, begin, given_up):
        # Of a log that has lost its beginning, offset 0 is an error, unlike "the beginning".
        consumer.assign([TopicPartition(self.topic, partition, begin)])
        records, end = [], begin
        while not given_up.is_set():
            message = consumer.poll(10.0)
            if message is None:
                raise TimeoutError(f"no broker responds for partition {partition}")
            if message.error() is None:
                records.append(json.loads(message.value()) | {"epoch": epoch_of(message)})
                end = message.offset() + 1
            elif message.error().code() == KafkaError._PARTITION_EOF:
                return records, max(end, message.offset())
            else:
                raise KafkaException(message.error())
        return records, end


def has_timed_out(error):
    """Says whether the producer gave up a record that it may have sent."""
    return error.args[0].code() == KafkaError._MSG_TIMED_OUT


def epoch_of(message):
    return next(int(value) for name, value in message.headers() if name == EPOCH)
