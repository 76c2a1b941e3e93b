"""What etcd says of keyspaces: who owns what, what moves, and how often owners have changed."""

import asyncio
import collections
import os
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.append(os.path.join(ROOT, "examples/python-etcd-pod"))

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

    async def settled(self, name, partitions, pods, patience, each_owns=False):
        """Waits until these pods are registered, all partitions are theirs, and none moves. Returns whether that came within the
        patience. `pods`: the address of each in its present life; a key of an earlier one stays until its lease ends. `each_owns`:
        each pod has to own a partition."""
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            view = await self.keyspace(name)
            entries = {pod: view.get(f"pods/{pod}") for pod in pods}
            alive = {(pod, entry.create_revision) for pod, entry in entries.items()
                     if entry and entry.value["address"] == pods[pod] and entry.value["status"] == "Ready"}
            owners = [view.get(f"assignments/{partition}") for partition in range(partitions)]
            lives = {owner and (owner.value["owner"], owner.value["incarnation"]) for owner in owners}
            moving = any(key.startswith("handoffs/") for key in view)
            if len(alive) == len(pods) and lives <= alive and (lives == alive or not each_owns) and not moving:
                return True
            await asyncio.sleep(0.1)
        return False

    async def records(self, prefix):
        """Yields each record below this key with its changes from now on, and whether it is a change."""
        revision = 0
        while True:
            try:
                if not revision:
                    revision, entries = await self.store.snapshot(prefix)
                    for entry in entries:
                        yield entry, False
                async for changes in self.store.watch(prefix, revision + 1, 3600):
                    for _, entry in changes:
                        if entry is not None:
                            revision = entry.mod_revision
                            yield entry, True
            except store.StoreError:
                await asyncio.sleep(0.2)

    async def count_moves(self, below=PREFIX):
        """Counts the flips of assignments below this key, for as long as it runs."""
        epochs = {}
        async for entry, _ in self.records(below):
            name, _, rest = entry.key.removeprefix(PREFIX).partition("/")
            if rest.startswith("assignments/"):
                self.moves[name] += epochs.get(entry.key, entry.value["epoch"]) < entry.value["epoch"]
                epochs[entry.key] = entry.value["epoch"]
