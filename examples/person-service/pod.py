"""A pod that owns persons, by partitions: writes and strong reads are its own alone, and it answers eventual reads of all persons.

The owner has its persons in memory, and stores each write before it acknowledges it. All pods share the store, as they would share a
database. An eventual read shows what is stored, whoever the owner is.
"""

import argparse
import asyncio
import json
import logging
import sqlite3

import grpc
from messages import pb
from segue_pod import Membership
from serving import serving

# What a router puts on a request that has no owner.
PARTITION, NO_PARTITION = "segue-partition", "none"


class Store:
    """The persons of all partitions, each with its properties and a version that grows with each write."""

    def __init__(self, path):
        self.database = sqlite3.connect(path, isolation_level=None, timeout=30)
        self.database.execute("PRAGMA journal_mode = WAL")
        self.database.execute(
            "CREATE TABLE IF NOT EXISTS persons (team, person, partition, properties, version, PRIMARY KEY (team, person))"
        )

    def read(self, team, person):
        found = self.database.execute("SELECT properties, version FROM persons WHERE team = ? AND person = ?", (team, person))
        properties, version = found.fetchone() or ("{}", 0)
        return json.loads(properties), version

    def read_partition(self, partition):
        found = self.database.execute("SELECT team, person, properties, version FROM persons WHERE partition = ?", (partition,))
        return {(team, person): (json.loads(properties), version) for team, person, properties, version in found}

    def write(self, partition, team, person, properties, version):
        row = (team, person, partition, json.dumps(properties), version)
        self.database.execute("INSERT OR REPLACE INTO persons VALUES (?, ?, ?, ?, ?)", row)


class Persons:
    """The persons of the partitions that the pod owns or is about to own."""

    def __init__(self, store):
        self.store, self.owned = store, {}

    async def warm(self, part):
        self.owned[part.partition] = self.store.read_partition(part.partition)

    async def sync(self, part):
        await self.warm(part)

    async def drain(self, part):
        """Nothing is written after its request."""

    async def release(self, part):
        self.owned.pop(part.partition, None)


class Service:
    def __init__(self, persons):
        self.persons, self.membership = persons, None

    async def get_person(self, request, context):
        key = (request.team_id, request.person_id)
        if dict(context.invocation_metadata()).get(PARTITION) == NO_PARTITION:
            return pb.GetPersonResponse(person=message(key, self.persons.store.read(*key)))
        async with self.membership.admit(context.invocation_metadata()) as owned:
            await check(owned, context)
            person = self.persons.owned[owned.partition].get(key, ({}, 0))
            return pb.GetPersonResponse(person=message(key, person))

    async def update_person_properties(self, request, context):
        key = (request.team_id, request.person_id)
        async with self.membership.admit(context.invocation_metadata()) as owned:
            await check(owned, context)
            before, version = self.persons.owned[owned.partition].get(key, ({}, 0))
            properties = before | json.loads(request.set_properties or b"{}")
            if not owned.may_write():
                await context.abort(grpc.StatusCode.UNKNOWN, "the lease has ended", (("segue-reason", "lease-lost"),))
            self.persons.store.write(owned.partition, *key, properties, version + 1)
            self.persons.owned[owned.partition][key] = (properties, version + 1)
            person = message(key, (properties, version + 1))
            return pb.UpdatePersonPropertiesResponse(person=person, updated=properties != before)


async def check(owned, context):
    """Refuses a request of a partition that is not the pod's own."""
    if owned is None:
        # The promise that nothing was done: the router sends the request again.
        refused = "this pod does not own the partition"
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, refused, (("segue-misdirected", "1"),))


def message(key, person):
    properties, version = person
    return pb.Person(team_id=key[0], id=key[1], properties=json.dumps(properties).encode(), version=version)


async def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--coordinator", action="append", required=True, help="host:port; several are tried in turn")
    arguments.add_argument("--keyspace", default="persons")
    arguments.add_argument("--name", required=True, help="unique in the keyspace")
    arguments.add_argument("--listen", required=True, help="where routers reach it, host:port")
    arguments.add_argument("--zone", default="a")
    arguments.add_argument("--lease-ttl", type=int, default=15, help="whole seconds")
    arguments.add_argument("--store", required=True, help="the database of all pods, a file")
    arguments = arguments.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    service = Service(Persons(Store(arguments.store)))
    service.membership = Membership(
        service.persons, coordinators=arguments.coordinator, keyspace=arguments.keyspace, name=arguments.name,
        address=arguments.listen, zone=arguments.zone, lease_ttl=arguments.lease_ttl,
    )
    methods = {"GetPerson": service.get_person, "UpdatePersonProperties": service.update_person_properties}
    async with serving(arguments.name, arguments.listen, methods):
        return 0 if await service.membership.take_part(within=60) else 1


if __name__ == "__main__":
    raise SystemExit(asyncio.run(main()))
