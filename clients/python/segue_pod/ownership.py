"""Decides which requests a pod may accept, and until when they may write. No I/O.

Invariants:

* A request is accepted only at the epoch that the pod owns, and only while the lease clock runs.
* A request writes only in the life (the incarnation) that accepted it: others may have owned its partition in between.
* The lease clock counts from when a confirmed heartbeat was *sent*, by a clock that counts suspended time.
"""

import asyncio
import contextlib
import time

# The header that says of a 421 whether the request was left undone ("1"), or the service itself has answered ("0").
MISDIRECTED = "segue-misdirected"

# The router may learn of an ownership before the pod does.
CATCH_UP = 0.25

PARTITION, EPOCH, KEYSPACE = "segue-partition", "segue-epoch", "segue-keyspace"


def lease_now():
    """Returns the seconds of the clock that leases are counted by."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Owned:
    """What an accepted request may rely on."""

    def __init__(self, ownership, partition, epoch, incarnation):
        self._ownership = ownership
        self.partition, self.epoch, self.incarnation = partition, epoch, incarnation

    def may_write(self):
        """Says whether what this request writes now takes effect before its lease can have ended. A write may take a sixth of the
        lease; one that takes longer has to fail by itself."""
        return self.incarnation == self._ownership.incarnation and lease_now() < self._ownership.stands_until


class Ownership:
    """The partitions that a pod owns in a keyspace, the lease under which it owns them, and its requests in flight."""

    def __init__(self, keyspace):
        self.keyspace = keyspace
        self.incarnation = 0
        self.epochs = {}  # partition: the epoch at which the pod owns it
        self.in_flight = {}  # partition: number of requests in progress
        self.trusted_until = self.stands_until = 0.0
        self.changed = asyncio.Condition()

    @contextlib.asynccontextmanager
    async def admit(self, headers):
        """Yields the `Owned` of a request with these headers, pairs of names and values, or None: then nothing may be done, and the
        response is a 421. The request counts as in flight until the block ends."""
        async with contextlib.AsyncExitStack() as stack:
            stamps = self.stamps(headers)
            yield await stack.enter_async_context(self.enter(*stamps)) if stamps else None

    def stamps(self, headers):
        """Returns the partition and the epoch that a router has put on a request of this keyspace, otherwise None."""
        found = {PARTITION: [], EPOCH: [], KEYSPACE: []}
        for name, value in headers:
            if name.lower() in found:
                found[name.lower()].append(value)
        if found[KEYSPACE] != [self.keyspace]:
            return None
        # A number comes once, and has nothing but digits.
        numbers = [values[0] for values in (found[PARTITION], found[EPOCH]) if len(values) == 1 and values[0].isascii()]
        return tuple(map(int, numbers)) if len(numbers) == 2 and all(map(str.isdigit, numbers)) else None

    @contextlib.asynccontextmanager
    async def enter(self, partition, epoch):
        """Does what `admit` does, for a request of this keyspace whose stamps have been read."""
        if self.epochs.get(partition, 0) < epoch:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CATCH_UP):
                    await self.until(lambda: self.epochs.get(partition, 0) >= epoch)
        if self.epochs.get(partition) != epoch or lease_now() >= self.trusted_until:
            yield None
            return
        self.in_flight[partition] = self.in_flight.get(partition, 0) + 1
        try:
            yield Owned(self, partition, epoch, self.incarnation)
        finally:
            self.in_flight[partition] -= 1
            await self.notify()

    def confirm(self, sent, trust, ttl):
        """Extends the lease: it was renewed after `sent`. The pod accepts requests for `trust`, two thirds of `ttl`."""
        self.trusted_until = sent + trust
        # Half-way between `trust` and the end of the lease, because clocks may differ in speed.
        self.stands_until = sent + (trust + ttl) / 2

    def fence(self):
        """Stops all requests: the registration is over."""
        self.epochs.clear()
        self.trusted_until = self.stands_until = 0.0

    async def until_idle(self, partition):
        """Returns once no request of the partition is in flight."""
        await self.until(lambda: not self.in_flight.get(partition))

    async def until(self, holds):
        async with self.changed:
            await self.changed.wait_for(holds)

    async def notify(self):
        async with self.changed:
            self.changed.notify_all()
