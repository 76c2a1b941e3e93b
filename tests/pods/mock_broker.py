"""The mock Kafka cluster that librdkafka ships, as a process: `mock_broker.py TOPIC PARTITIONS` prints the brokers' addresses.
Beside the topic is that of its checkpoints.

It speaks Kafka's protocol over TCP and keeps records in memory. It has three brokers, and every topic has three replicas. The
response to a fetch has only the records that were produced together.
"""

import ctypes
import pathlib
import signal
import sys

import confluent_kafka

BROKERS = 3


def main():
    topic, partitions = sys.argv[1].encode(), int(sys.argv[2])
    libraries = pathlib.Path(confluent_kafka.__file__).parents[1] / "confluent_kafka.libs"
    kafka = ctypes.CDLL(str(next(libraries.glob("librdkafka*"))))
    for name in ("rd_kafka_conf_new", "rd_kafka_new", "rd_kafka_mock_cluster_new"):
        getattr(kafka, name).restype = ctypes.c_void_p
    kafka.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
    error = ctypes.create_string_buffer(512)
    producer = 0
    handle = kafka.rd_kafka_new(producer, ctypes.c_void_p(kafka.rd_kafka_conf_new()), error, ctypes.c_size_t(512))
    assert handle, error.value
    cluster = ctypes.c_void_p(kafka.rd_kafka_mock_cluster_new(ctypes.c_void_p(handle), BROKERS))
    for name in (topic, topic + b"-checkpoints"):
        assert kafka.rd_kafka_mock_topic_create(cluster, name, partitions, BROKERS) == 0
    print(kafka.rd_kafka_mock_cluster_bootstraps(cluster).decode(), flush=True)
    signal.pause()


if __name__ == "__main__":
    main()
