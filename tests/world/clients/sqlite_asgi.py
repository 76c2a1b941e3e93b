"""SQLite behind ASGI: clients add notes, half of them by HTTP/2 over TLS, and read all of a key now and then."""

import asyncio
import ssl
import time

import httpx

from harm import says_broken

from .appends import Appends


class Sqlite(Appends):
    name, program, prefix, key = "sqlite", "sqlite_asgi.py", "/notes", {"path": "/notes/{key}"}
    clients = 8

    def __init__(self, *rest):
        super().__init__(*rest)
        # Without it the databases of a pod that lives stay locked.
        self.has_drain_hook = self.sabotage != "no-drain-hook"
        self.found = {}  # by key: what the service returned in the end

    def session(self):
        return httpx.AsyncClient(http2=True, verify=ssl.create_default_context(cafile=self.site.certificate), timeout=60)

    async def client(self, number):
        random, url = self.random_of(number), (self.site.url, self.site.tls_url)[number % 2]
        async with self.session() as session:
            for count in range(1_000_000):
                if self.is_over():
                    return
                key, name = self.key_of(random.randrange(self.keys)), f"{number}/{count}"
                began = time.time()
                answer = await self.one(session, key, "POST", f"{url}/notes/{key}", name)
                if answer is not None:
                    self.acknowledge(key, name, answer["position"], began)
                if random.random() < 0.05:
                    await self.one(session, key, "GET", f"{url}/notes/{key}", None)
                await asyncio.sleep(random.uniform(0.02, 0.2))

    async def one(self, session, key, method, url, body):
        """Sends one request. Returns its answer, or None if it failed."""
        began = time.time()
        try:
            response = await session.request(method, url, content=body)
        except httpx.TransportError as error:
            self.failed(key, began, f"{method} {url}: {error!r}", not isinstance(error, httpx.TimeoutException))
            return None
        if response.status_code != 200:
            self.refused(key, began, f"{method} {url}", response)
            return None
        if method == "GET":
            self.succeeded(began)
        return response.json()

    def refused(self, key, began, what, response):
        is_broken = says_broken(response.status_code, response.text)
        self.failed(key, began, f"{what}: {response.status_code} {response.text[:200]}", is_broken)

    async def finish(self):
        # The pods have the databases locked, so that nobody else can read them.
        async with self.session() as session:
            for number in range(self.keys):
                key = self.key_of(number)
                self.found[key] = await self.one(session, key, "GET", f"{self.site.url}/notes/{key}", None) or []

    def stored(self, key):
        return self.found[key]
