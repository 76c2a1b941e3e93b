"""What every way to take part has in common, and what a service calls."""

import asyncio
import logging
import signal

from .asgi import Asgi
from .ownership import Ownership

log = logging.getLogger("segue_pod")


class Participant:
    """A pod's part in a keyspace. How it registers is up to `run` and `leave` of a subclass, which keeps `ownership` up to date."""

    def __init__(self, service, keyspace, name):
        self.service, self.keyspace, self.name = service, keyspace, name
        self.ownership = Ownership(keyspace)

    def admit(self, headers):
        """Returns a context manager that yields the `Owned` of a request with these headers, pairs of names and values, or None.

        Without an `Owned` nothing may be done. The response is a 421 with the header `segue-misdirected: 1`, and the router sends the
        request again. A 421 of the service itself has `segue-misdirected: 0`. Before a response to a write the service asks
        `Owned.may_write` once more: the next owner may not have seen what was written later.
        """
        return self.ownership.admit(headers)

    def asgi(self, app):
        """Returns an ASGI application that admits requests to `app` and does all that `admit` asks of a service, but for
        `Owned.may_write` before each write. The scope of an admitted request has its `Owned` as `segue`."""
        return Asgi(app, self.ownership)

    async def take_part(self, within=60):
        """Takes part until SIGTERM or SIGINT, and then hands all partitions over, for at most this many seconds. Returns whether none
        was left."""
        ended = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, ended.set)
        running = asyncio.create_task(self.run())
        running.add_done_callback(lambda _: ended.set())
        await ended.wait()
        if running.done():
            running.result()
        log.info("handing over")
        is_empty = await self.leave(within)
        running.cancel()
        log.info("ended; everything handed over: %s", is_empty)
        return is_empty

    async def run(self):
        """Takes part until the pod has left."""
        raise NotImplementedError

    async def leave(self, within):
        """Hands all partitions over while the service serves requests, for at most this many seconds. Returns whether none was
        left."""
        raise NotImplementedError
