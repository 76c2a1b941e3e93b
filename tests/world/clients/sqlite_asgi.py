"""SQLite behind ASGI: clients add notes, half of them by HTTP/2 over TLS, and read all of a key now and then."""

import time

from .appends import Appends
from .over_http import OverHttp


class Sqlite(OverHttp, Appends):
    name, program, prefix, key = "sqlite", "sqlite_asgi.py", "/notes", {"path": "/notes/{key}"}

    def __init__(self, *rest):
        super().__init__(*rest)
        # Without it the databases of a pod that lives stay locked.
        self.has_drain_hook = self.sabotage != "no-drain-hook"
        self.found = {}  # by key: what the service returned in the end

    async def step(self, session, url, random, number, count):
        key, name = self.key_of(random.randrange(self.keys)), f"{number}/{count}"
        began = time.time()
        answer = await self.send(session, key, "POST", f"{url}/notes/{key}", content=name)
        if answer is not None:
            self.acknowledge(key, name, answer.json()["position"], began)
        if random.random() < 0.05:
            await self.notes(session, url, key)

    async def notes(self, session, url, key):
        """Returns all notes of a key, or none if that failed."""
        began = time.time()
        answer = await self.send(session, key, "GET", f"{url}/notes/{key}")
        if answer is None:
            return []
        self.succeeded(began)
        return answer.json()

    async def finish(self):
        # The pods have the databases locked, so that nobody else can read them.
        async with self.session() as session:
            for number in range(self.keys):
                key = self.key_of(number)
                self.found[key] = await self.notes(session, self.site.url, key)

    def stored(self, key):
        return self.found[key]
