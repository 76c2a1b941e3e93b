"""What etcd says of the keyspaces: who owns what, what moves, and how often owners have changed."""

import asyncio
import collections
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(os.path.dirname(os.path.dirname(HERE)), "examples/python-etcd-pod")]

import etcd as store  # noqa: E402: the client that the example pod has

PREFIX = "/segue/"


class StoreView:
    def __init__(self, url):
        self.store = store.Etcd([url], timeout=60)
        self.moves = collections.Counter()  # by keyspace: handoffs that took effect

    async def keyspace(self, name):
        """Returns the keyspace's records, by their keys without the prefix."""
        prefix = f"{PREFIX}{name}/"
        _, entries = await self.store.snapshot(prefix, prefix + "~")
        return {entry.key.removeprefix(prefix): entry for entry in entries}

    async def partitions_of(self, name, pod):
        """Returns the partitions that the pod owns, or that move to or from it."""
        found = set()
        for key, entry in (await self.keyspace(name)).items():
            kind, _, partition = key.partition("/")
            if kind == "assignments" and entry.value["owner"] == pod:
                found.add(int(partition))
            if kind == "handoffs" and pod in (entry.value["old_owner"], entry.value["new_owner"]):
                found.add(int(partition))
        return found

    async def count_moves(self):
        """Counts the flips of assignments for as long as it runs."""
        epochs, revision = {}, 0
        while True:
            try:
                if not revision:
                    revision, entries = await self.store.snapshot(PREFIX)
                    self.count([(entry.key, entry) for entry in entries], epochs)
                async for changes in self.store.watch(PREFIX, revision + 1, 3600):
                    revision = max([revision, *(entry.mod_revision for _, entry in changes if entry)])
                    self.count(changes, epochs)
            except store.StoreError:
                await asyncio.sleep(0.2)

    def count(self, changes, epochs):
        for key, entry in changes:
            name, _, rest = key.removeprefix(PREFIX).partition("/")
            if entry is not None and rest.startswith("assignments/"):
                self.moves[name] += epochs.get(key, entry.value["epoch"]) < entry.value["epoch"]
                epochs[key] = entry.value["epoch"]
