"""What all services of the test have in common: a name, where their requests go, and how their clients fail."""

import asyncio
import os
import random
import time
import traceback


class Service:
    """One service with its clients. A subclass has `name`, `program`, `prefix`, `key` (as in the router's file),
    `client(number)`, which does one thing at a time until `self.is_over()`, and `check()`."""

    clients = 4
    without_key = "refuse"
    has_drain_hook = False

    def __init__(self, site, harm, seed, sabotage):
        self.site, self.harm, self.seed, self.sabotage = site, harm, seed, sabotage
        self.folder = os.path.join(site.folder, "state", self.name)
        os.makedirs(self.folder)
        self.options = ["--acknowledge-early"] if sabotage == "acknowledge-early" else []
        self.requests, self.acknowledged, self.reconnects, self.slowest = 0, 0, 0, 0.0
        self.over = asyncio.Event()

    def command_of(self, pod):
        """Returns the command line of the pod's service."""
        return " ".join(pod.command)

    def partitions_of_keys(self):
        """Returns the partitions of keys, where the pods' notes do not tell them."""
        return {}

    async def prepare(self):
        """Makes what is there before the first request."""

    async def play(self):
        await asyncio.gather(*(self.guarded(number) for number in range(self.clients)))

    async def guarded(self, number):
        """Runs a client. One that ends by a mistake of the test itself counts as harm, so that it is noticed."""
        try:
            await self.client(number)
        except Exception:
            self.harm.add(self.name, f"client {number} broke off: {traceback.format_exc()}")

    def is_over(self):
        return self.over.is_set()

    def random_of(self, number):
        return random.Random(f"{self.seed}-{self.name}-{number}")

    def ends(self, began):
        """Notes a request that has ended."""
        self.requests += 1
        self.slowest = max(self.slowest, time.time() - began)

    def succeeded(self, began):
        self.ends(began)
        self.acknowledged += 1

    def failed(self, key, began, what, is_broken):
        self.ends(began)
        self.harm.failed(self.name, key, began, what, is_broken)

    async def finish(self):
        """Waits, once the last client has ended, for what clients read without end."""

    def summary(self):
        return ""
