"""Clients that append records to logs by keys, each record once in its life, and the check of what became of them.

A record whose response did not come is not sent again: it may be there or not. One that was acknowledged is there at
the position that its response named, and none is there twice. So a request that somebody on the way repeats after it
took effect is noticed.
"""

import os

from work import in_file_name, read

from .service import Service


class Appends(Service):
    keys = 8

    def __init__(self, *rest):
        super().__init__(*rest)
        self.acks = {}  # by key: positions by the record's name

    def key_of(self, number):
        return f"key-{number % self.keys}"

    def acknowledge(self, key, name, position, began):
        self.succeeded(began)
        self.acks.setdefault(key, {})[name] = position

    def stored(self, key):
        return read(os.path.join(self.folder, "log", in_file_name(key)))

    async def check(self):
        for number in range(self.keys):
            key = self.key_of(number)
            records, acks = self.stored(key), self.acks.get(key, {})
            positions = {}
            for place, record in enumerate(records, 1):
                if record["position"] != place:
                    what = f"record {place} was written as {record['position']} by {record['pod']}"
                    self.harm.add(self.name, f"{key}: {what}")
                if record["name"] in positions:
                    self.harm.add(self.name, f"{key}: {record['name'][:20]} is there twice")
                positions[record["name"]] = record["position"]
            for name, position in acks.items():
                if name not in positions:
                    self.harm.add(self.name, f"{key}: {name[:20]} was acknowledged and is missing")
                elif positions[name] != position:
                    what = f"{name[:20]} was acknowledged at {position} and is at {positions[name]}"
                    self.harm.add(self.name, f"{key}: {what}")
            # One client's records of a key are in the order in which it sent them.
            for client in range(self.clients):
                names = [record["name"] for record in records if record["name"].startswith(f"{client}/")]
                mine = [int(name.split("/")[1]) for name in names]
                if mine != sorted(mine):
                    self.harm.add(self.name, f"{key}: client {client}'s records are not in the order of its requests")

    def summary(self):
        return f"{sum(map(len, self.acks.values()))} records acknowledged, {self.reconnects} times connected again"
