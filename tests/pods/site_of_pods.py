"""A site: etcd, coordinators, routers, and writer pods of every example, each a process."""

import asyncio
import json
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
EXAMPLES = os.path.join(ROOT, "examples")
sys.path.append(os.path.join(EXAMPLES, "kafka-pod"))

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition  # noqa: E402
from harness.etcd import Etcd  # noqa: E402
from harness.ports import free_port  # noqa: E402
from harness.processes import Process  # noqa: E402
from harness.segue import QUICK, Segue, at  # noqa: E402
from harness.store_view import StoreView  # noqa: E402
from harness.waiting import PATIENCE, eventually  # noqa: E402

from breaker import Breaker  # noqa: E402
from kafka_log import KafkaLog, record_of  # noqa: E402

KEYSPACE = "default"
LEASE = 3
TOPIC = "persons"
PYTHON = os.path.join(ROOT, ".tools/pods/bin/python")
COORDINATORS, ROUTERS = 3, 2


def whole_topic(settings, partitions):
    """Returns the records of each partition. All are read at the same time, because a response of the mock cluster has few
    records of each."""
    consumer, topic, unread = Consumer(settings), [[] for _ in range(partitions)], set(range(partitions))
    consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in range(partitions)])
    while unread:
        message = consumer.poll(PATIENCE)
        assert message, f"no broker responds; {len(unread)} partitions are not read to their end"
        if not message.error():
            topic[message.partition()].append(record_of(message))
        elif message.error().code() == KafkaError._PARTITION_EOF:
            unread.discard(message.partition())
        else:
            raise KafkaException(message.error())
    consumer.close()
    return topic


class Pod:
    """A pod and the command that starts it, without the address on which it listens."""

    plays_handoffs = True

    def __init__(self, name, language, command):
        self.name, self.language, self.command = name, language, command
        self.process = self.listen = None

    def start(self, folder):
        # A port of its own for each life: connections to the one before may still be closing.
        self.listen = at(free_port())
        self.process = Process(self.name, folder, self.arguments(folder))

    def arguments(self, folder):
        return [*self.command, "--name", self.name, "--listen", self.listen]

    def alone(self, service, keyspace, name, listen, folder, lease):
        """Returns the command of such a pod with another service of coordinators, another keyspace, and logs of its own."""
        settings = {"--coordinator": service, "--log-dir": folder, "--lease-ttl": lease}
        words, out, seen = iter(self.command), [], set()
        for word in words:
            if word not in settings:
                out.append(word)
                continue
            value = next(words)
            if word not in seen:
                # Of some examples the time has a unit.
                out += [word, f"{settings[word]}s" if word == "--lease-ttl" and value.endswith("s") else str(settings[word])]
            seen.add(word)
        return [*out, "--keyspace", keyspace, "--name", name, "--listen", listen]

    @property
    def kind(self):
        return self.name.rsplit("-", 1)[0]

    @property
    def is_by_grpc(self):
        return "--coordinator" in self.command

    @property
    def needs_token(self):
        return "--token-file" in self.command


class Counter(Pod):
    """An example that counts, and takes its arguments by their places. The load is none for it."""

    is_by_grpc, needs_token = True, False

    def alone(self, service, keyspace, name, listen, folder, lease):
        return [*self.command, service, keyspace, name, listen, folder]


class PodWithSidecar(Pod):
    """A service that opens its stream at a sidecar, which starts and supervises it. `command` starts the service."""

    # Those of a sidecar: tests/process/conformance/handoffs.rs.
    plays_handoffs = False

    def __init__(self, name, language, command, site, etcd):
        super().__init__(name, language, command)
        self.site, self.etcd = site, etcd

    def arguments(self, folder):
        upstream, socket = at(free_port()), f"unix:{folder}/{self.name}.sock"
        service = [*self.command, "--coordinator", socket, "--name", self.name, "--listen", upstream]
        config = self.site.configure(self.name, {"store": {"endpoints": [self.etcd]}, "pod": {
            "name": self.name, "listen": self.listen, "upstream": upstream, "lease_ttl": f"{2 * LEASE}s", "shutdown_timeout": "30s",
            "stream": socket, "exec": service,
        }})
        return [self.site.program, "run", "--config", config]


class Site(Segue):
    def __init__(self, binaries, folder, partitions):
        super().__init__(os.path.join(binaries, "segue"), folder, Etcd(folder))
        self.binaries, self.partitions = binaries, partitions
        self.logs = os.path.join(folder, "partitions")
        self.view = StoreView(self.etcd.url)
        self.kafka = None  # the brokers' addresses
        self.pods, self.coordinators, self.routers, self.breakers = {}, {}, [], []
        self.ports = {f"c-{number}": free_port() for number in range(COORDINATORS)}
        self.token = os.path.join(folder, "token")
        with open(self.token, "w", encoding="utf-8") as out:
            out.write("a token of all pods\n")

    async def begin(self, each, kafka, sabotage):
        etcd_port = int(self.etcd.url.rsplit(":", 1)[1])
        self.etcd_breaker = await Breaker(free_port(), etcd_port).start()
        self.breakers = [self.etcd_breaker]
        for name, port in self.ports.items():
            self.breakers.append(await Breaker(free_port(), port).start())
            self.start_coordinator(name)
        self.routers = [self.start_router(f"r-{number}") for number in range(ROUTERS)]
        pods = list(await self.with_kafka() if kafka else self.examples(each))
        if sabotage:
            pods.append(self.broken(sabotage, pods))
        for pod in pods:
            self.pods[pod.name] = pod
            pod.start(self.folder)
        await self.settled()

    async def with_kafka(self):
        """Starts brokers, and returns pods that keep their state there."""
        brokers = Process("kafka", self.folder, [PYTHON, os.path.join(HERE, "mock_broker.py"), TOPIC, str(self.partitions)])
        addresses = lambda: [line for line in brokers.tail().splitlines() if line.startswith("127.0.0.1:")]  # noqa: E731
        self.kafka = (await eventually(addresses, "the brokers"))[0]
        pod = os.path.join(EXAMPLES, "kafka-pod/pod.py")
        command = [PYTHON, pod, *self.known_coordinators(), "--kafka", self.kafka, "--topic", TOPIC, "--lease-ttl", str(LEASE)]
        return [Pod(f"python-kafka-{number}", "python", command) for number in range(4)]

    async def copy_topic(self):
        """Copies the records that have an effect from Kafka to the folder of the logs. Minutes pass, in which the breakers of this
        process forward little: pods may have lost their leases in the end."""
        await asyncio.to_thread(self.copy_records, KafkaLog(self.kafka, TOPIC, LEASE).consumer)

    def copy_records(self, consumer):
        topic = whole_topic(consumer, self.partitions)
        os.makedirs(self.logs, exist_ok=True)
        for partition, records in enumerate(topic):
            newest = 0
            with open(os.path.join(self.logs, f"{partition}.log"), "w", encoding="utf-8") as out:
                for record in records:
                    newest = max(newest, record["epoch"])
                    if record["epoch"] == newest and record["key"]:
                        out.write(json.dumps(record) + "\n")

    def known_coordinators(self):
        known = [word for breaker in self.breakers[1:] for word in ("--coordinator", breaker.address)]
        return [*known, "--token-file", self.token]

    async def settled(self):
        """Waits until every pod owns partitions in its present life, every partition is owned, and none moves."""
        pods = {name: pod.listen for name, pod in self.pods.items()}
        if not await self.view.settled(KEYSPACE, self.partitions, pods, PATIENCE, each_owns=True):
            raise AssertionError(f"the site does not settle: {self.operate('status').stdout}")

    def examples(self, each):
        """Returns the pods of every example. They reach etcd and the coordinators through the breakers."""
        etcd = f"http://{self.etcd_breaker.address}"
        grpc = [breaker.address for breaker in self.breakers[1:]]
        logs = ["--log-dir", self.logs]
        times = [*logs, "--lease-ttl", str(LEASE), "--warm-time", "0.03", "--service-time", "0.002"]
        go_times = [*logs, "--lease-ttl", f"{LEASE}s", "--warm-time", "30ms", "--service-time", "2ms"]
        rust_times = [*logs, "--lease-ttl", str(LEASE), "--warm-time", "30", "--service-time", "2"]
        known = self.known_coordinators()
        kinds = {
            "python-grpc": [PYTHON, os.path.join(EXAMPLES, "python-grpc-pod/pod.py"), *known, *times],
            "python-etcd": [PYTHON, os.path.join(EXAMPLES, "python-etcd-pod/pod.py"), "--etcd", etcd, *times],
            "go-grpc": [os.path.join(self.binaries, "go-grpc-pod"), "--coordinator", ",".join(grpc), "--token-file", self.token, *go_times],
            "rust-linked": [os.path.join(self.binaries, "examples/writer"), "--etcd", etcd, *rust_times],
        }
        for kind, command in kinds.items():
            for number in range(each):
                yield Pod(f"{kind}-{number}", kind.split("-")[0], command)
        service = [PYTHON, os.path.join(EXAMPLES, "python-grpc-pod/pod.py"), *times]
        yield PodWithSidecar("python-sidecar-0", "python", service, self, etcd)

    def counters(self):
        """Returns the examples of the packages."""
        yield Counter("python-counter-0", "python", [PYTHON, os.path.join(ROOT, "clients/python/example.py")])
        yield Counter("go-counter-0", "go", [os.path.join(self.binaries, "go-counter-pod")])

    def broken(self, fault, pods):
        """Returns one more pod of an example, with this fault."""
        example = next(pod for pod in pods if pod.name == f"python-{fault.split('-')[0]}-0")
        _, _, *rest = example.command
        return Pod("python-broken", "python", [PYTHON, os.path.join(HERE, "broken.py"), fault, *rest])

    def start_coordinator(self, name):
        self.coordinators[name] = self.run(name, {"coordinator": {
            "name": name, "partitions": self.partitions, "lease_ttl": "2s", "checkpoint_interval": "5s", "checkpoint_timeout": "500ms",
            "listen": at(self.ports[name]), "token_file": self.token,
        } | QUICK})

    def start_router(self, name):
        port = free_port()
        self.run(name, {"router": {
            "name": name, "listen": at(port), "lease_ttl": "3s", "workers": 1, "drain": {"timeout": "5s"},
            "partition": {"header": "x-partition", "order_by": {"header": "x-key"}},
        }})
        return f"http://{at(port)}"
