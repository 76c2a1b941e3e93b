"""Plays `examples/person-service` behind `config/examples/person-service.toml`: writes and strong reads go to the owner of a person,
eventual reads to any pod of the zone, and other calls to a service that is no pod, while partitions move, a pod is killed and the
service is away. `SEGUE` names the program, as `cargo test --workspace --test process python_pods` does."""

import asyncio
import collections
import os
import sys
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
EXAMPLE = os.path.join(ROOT, "examples/person-service")
sys.path[:0] = [os.path.dirname(HERE), EXAMPLE]

import grpc  # noqa: E402
from client import Client  # noqa: E402
from harness.etcd import Etcd  # noqa: E402
from harness.ports import free_port  # noqa: E402
from harness.processes import Process, folder_of_processes  # noqa: E402
from harness.segue import QUICK, Segue, at  # noqa: E402
from harness.store_view import StoreView  # noqa: E402
from harness.waiting import INTERVAL, PATIENCE  # noqa: E402
from messages import pb  # noqa: E402
from pod import Store  # noqa: E402

KEYSPACE, PARTITIONS, LEASE, TEAM = "persons", 16, 3, 7
ZONES = {"pod-0": "a", "pod-1": "a", "pod-2": "b"}
PERSONS = range(100, 112)
# Within this time after a kill a call may still be sent on a connection whose end nobody has noticed.
NOTICED = 2.0


class Site(Segue):
    def __init__(self, folder):
        super().__init__(os.environ["SEGUE"], folder, Etcd(folder), KEYSPACE)
        self.view, self.pods, self.addresses = StoreView(self.etcd.url), {}, {}
        self.coordinator, self.router, self.replica_address = (at(free_port()) for _ in range(3))
        self.database = os.path.join(folder, "persons.db")

    def begin(self):
        self.run("coordinator", {
            "coordinator": {"name": "c", "partitions": PARTITIONS, "lease_ttl": "5s", "listen": self.coordinator} | QUICK,
        })
        self.start("router", self.router_config())
        self.start_replica()
        for name in ZONES:
            self.start_pod(name)

    def router_config(self):
        """Writes the example with the addresses of this site. Returns where it is."""
        with open(os.path.join(ROOT, "config/examples/person-service.toml"), encoding="utf-8") as example:
            text = example.read()
        for written, ours in (
            ("http://127.0.0.1:2379", self.etcd.url), ("0.0.0.0:8080", self.router), ("127.0.0.1:50052", self.replica_address),
        ):
            assert text.count(f'"{written}"') == 1, written
            text = text.replace(f'"{written}"', f'"{ours}"')
        path = os.path.join(self.folder, "router.toml")
        with open(path, "w", encoding="utf-8") as out:
            out.write(text)
        return path

    def example(self, name, program, listen, *arguments):
        command = [sys.executable, os.path.join(EXAMPLE, program), "--name", name, "--listen", listen, *arguments]
        return Process(name, self.folder, command)

    def start_replica(self):
        self.replica = self.example("replica", "replica.py", self.replica_address)

    def start_pod(self, name):
        # A port of its own for each life: connections to the one before may still be closing.
        self.addresses[name] = at(free_port())
        self.pods[name] = self.example(
            name, "pod.py", self.addresses[name], "--coordinator", self.coordinator, "--zone", ZONES[name], "--lease-ttl", str(LEASE),
            "--store", self.database,
        )

    async def settled(self):
        if not await self.view.settled(KEYSPACE, PARTITIONS, self.addresses, PATIENCE, each_owns=True):
            raise AssertionError(f"the site does not settle: {self.operate('status').stdout}")

    async def move(self, partition, to):
        done = await asyncio.to_thread(self.operate, "move", str(partition), "--to", to, "--timeout", f"{PATIENCE:.0f}s")
        assert done.returncode == 0, done.stdout + done.stderr


class Person:
    """The calls about one person, one after the other: a write, a strong read and an eventual read of what was written."""

    def __init__(self, client, number, kills):
        self.client, self.number, self.kills = client, number, kills
        # What may be stored: more than one value after a write that failed.
        self.possible, self.rounds, self.excused = {0}, 0, 0
        self.by = collections.defaultdict(collections.Counter)  # by kind of call: who has answered

    async def play(self, over):
        while not over.is_set():
            value = max(self.possible) + 1
            self.possible.add(value)
            if await self.call("write", self.client.update(TEAM, self.number, {"n": value})) == value:
                self.possible = {value}
            for kind, strong in (("strong", True), ("eventual", False)):
                found = await self.call(kind, self.client.get(TEAM, self.number, strong))
                if found is not None:
                    assert found in self.possible, f"{self.number}: a read ({kind}) found {found}, not one of {self.possible}"
                    if strong:
                        self.possible = {found}
            self.rounds += 1

    async def call(self, kind, call):
        """Returns the value that a call shows, or nothing if its pod was killed."""
        began = time.monotonic()
        try:
            properties, by = await call
        except grpc.aio.AioRpcError as error:
            is_excused = any(began < kill + NOTICED and kill < time.monotonic() for kill in self.kills)
            assert is_excused and error.code() == grpc.StatusCode.INTERNAL, f"{self.number}: {kind}: {error}"
            self.excused += 1
            return None
        self.by[kind][by] += 1
        return properties.get("n", 0)


class PersonService(unittest.IsolatedAsyncioTestCase):
    async def test_persons_are_written_by_their_owners_and_read_anywhere_and_other_calls_reach_the_service(self):
        with folder_of_processes("persons", shows_tails=lambda failed: failed) as folder:
            site = Site(folder)
            site.begin()
            await site.settled()
            async with grpc.aio.insecure_channel(site.router) as channel:
                await asyncio.wait_for(channel.channel_ready(), PATIENCE)
                await self.play(site, Client(channel))
            await site.view.store.close()

    async def play(self, site, client):
        kills, over = [], asyncio.Event()
        self.persons = [Person(client, number, kills) for number in PERSONS]
        self.playing = [asyncio.create_task(person.play(over)) for person in self.persons]
        await self.rounds(3)
        await self.moves(site)
        await self.calls_of_no_owner(client)
        await self.service_away(site, client)
        await self.kill(site, kills)

        site.pods["pod-0"].end()
        self.assertEqual(await asyncio.to_thread(site.pods["pod-0"].process.wait, PATIENCE), 0)
        await self.rounds(3)
        over.set()
        await asyncio.gather(*self.playing)
        store = Store(site.database)
        for person in self.persons:
            properties, _ = store.read(TEAM, person.number)
            self.assertIn(properties.get("n", 0), person.possible)
        kinds = ", ".join(f"{kind} {dict(self.answered(kind))}" for kind in ("write", "strong", "eventual"))
        print(f"{kinds}; {sum(person.excused for person in self.persons)} calls failed by the kill", file=sys.stderr)

    async def rounds(self, count):
        """Waits until each person has been written and read so many times from now on."""
        wanted = [person.rounds + count for person in self.persons]
        deadline = time.monotonic() + PATIENCE
        while any(person.rounds < rounds for person, rounds in zip(self.persons, wanted)):
            for ended in (task for task in self.playing if task.done()):
                ended.result()
            self.assertLess(time.monotonic(), deadline, "calls do not go on")
            await asyncio.sleep(INTERVAL)

    def answered(self, kind):
        return sum((person.by[kind] for person in self.persons), collections.Counter())

    async def moves(self, site):
        for partition in range(PARTITIONS):
            # Twice as many to the other zone: its owners are written to, while the pods of this one answer eventual reads.
            await site.move(partition, ["pod-2", "pod-2", "pod-0"][partition % 3])
        await self.rounds(3)
        self.assertGreater(self.answered("write")["pod-2"], 0)
        self.assertGreater(self.answered("strong")["pod-2"], 0)
        self.assertEqual(set(self.answered("eventual")), {"pod-0", "pod-1"}, "the pods of the zone, whoever the owner is")
        for person in self.persons:
            self.assertEqual(person.excused, 0, "nobody was killed")

    async def calls_of_no_owner(self, client):
        self.assertTrue(await client.is_serving())
        group, by = await client.group(TEAM, "acme")
        self.assertEqual((group, by), ({"told": []}, "replica"))
        # Whatever a client says of itself.
        forged = (("segue-partition", "3"), ("segue-epoch", "9"), ("segue-misdirected", "1"))
        response, by = await client.call("GetGroup", pb.GetGroupRequest(team_id=TEAM), forged)
        self.assertEqual((response.group.group_properties, by), (b'{"told": []}', "replica"))
        # A write that names no person is nobody's, whatever its metadata say.
        request = pb.UpdatePersonPropertiesRequest(team_id=TEAM, set_properties=b"{}")
        for metadata in ((), (("x-team-id", "7"), ("x-person-id", "1"))):
            with self.assertRaises(grpc.aio.AioRpcError) as refused:
                await client.call("UpdatePersonProperties", request, metadata)
            self.assertEqual(refused.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)

    async def service_away(self, site, client):
        """Ends the service that is no pod: its calls alone fail, at once, until it is back."""
        site.replica.end()
        self.assertEqual(await asyncio.to_thread(site.replica.process.wait, PATIENCE), 0)
        with self.assertRaises(grpc.aio.AioRpcError) as refused:
            await client.group(TEAM, "acme")
        self.assertEqual(refused.exception.code(), grpc.StatusCode.UNAVAILABLE)
        metadata = [*refused.exception.initial_metadata(), *refused.exception.trailing_metadata()]
        self.assertIn(("segue-reason", "no-upstream"), [(name, value) for name, value in metadata])
        await self.rounds(2)
        site.start_replica()
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                self.assertEqual((await client.group(TEAM, "acme"))[1], "replica")
                return
            except grpc.aio.AioRpcError as error:
                self.assertEqual(error.code(), grpc.StatusCode.UNAVAILABLE)
                self.assertLess(time.monotonic(), deadline, "the service is not found again")
                await asyncio.sleep(INTERVAL)

    async def kill(self, site, kills):
        """Kills a pod of the zone. Its persons wait for their next owner, and eventual reads go to the other pod of the zone."""
        await site.move(0, "pod-1")
        kills.append(time.monotonic())
        site.pods["pod-1"].kill()
        await self.rounds(3)
        site.start_pod("pod-1")
        await site.settled()
        await self.rounds(3)
        # What fails from here on is excused by nothing.
        kills.clear()


if __name__ == "__main__":
    unittest.main()
