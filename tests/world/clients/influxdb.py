"""InfluxDB: clients write points of several databases, half of them by HTTP/2 over TLS, and count their own now and then. A point
whose response did not come is not sent again. One that was acknowledged is counted from then on, and is there in the end.

InfluxDB keeps one of two equal points, so what does not show here is a request that took effect twice.
"""

import asyncio
import collections
import time

import httpx

from .sqlite_asgi import Sqlite


class InfluxDb(Sqlite):
    name, program, prefix, key = "influxdb", "influxdb.py", "/influxdb", {"query": "db"}
    databases = 8

    def __init__(self, *rest):
        super().__init__(*rest)
        self.points = collections.defaultdict(set)  # by database: the clients and numbers of acknowledged points

    async def prepare(self):
        async with self.session() as session:
            for number in range(self.databases):
                rows = await self.query(session, self.site.url, f"db-{number}", f'CREATE DATABASE "db-{number}"')
                assert rows, self.harm.failures

    async def query(self, session, url, database, text):
        """Returns the rows of a query, or None if it failed."""
        began = time.time()
        result = await self.send(session, database, f"{url}/influxdb/query", {"db": database}, data={"q": text})
        if result is None:
            return None
        self.succeeded(began)
        [series] = result.json()["results"][0].get("series", [{"values": []}])
        return series["values"] or True

    async def send(self, session, database, url, params, **body):
        """Sends one request. Returns the response, or None if it failed."""
        began = time.time()
        try:
            response = await session.post(url, params=params, **body)
        except httpx.TransportError as error:
            self.failed(database, began, f"{url}: {error!r}", not isinstance(error, httpx.TimeoutException))
            return None
        if response.status_code in (200, 204):
            return response
        self.refused(database, began, url, response)
        return None

    async def client(self, number):
        random, url = self.random_of(number), (self.site.url, self.site.tls_url)[number % 2]
        async with self.session() as session:
            for count in range(1_000_000):
                if self.is_over():
                    return
                database = f"db-{random.randrange(self.databases)}"
                began = time.time()
                point = f"points,client={number} number={count}i {time.time_ns()}"
                response = await self.send(session, database, f"{url}/influxdb/write", {"db": database}, content=point)
                if response is not None:
                    self.succeeded(began)
                    self.points[database].add((number, count))
                if random.random() < 0.1:
                    await self.count(session, url, database, number)
                await asyncio.sleep(random.uniform(0.02, 0.2))

    async def count(self, session, url, database, number):
        """Counts this client's points. Those that were acknowledged before are among them."""
        known = sum(client == number for client, _ in self.points[database])
        rows = await self.query(session, url, database, f"SELECT count(number) FROM points WHERE client = '{number}'")
        if rows is not None and known > (rows[0][1] if rows is not True else 0):
            self.harm.add(self.name, f"{database}: client {number} has written {known} points and counts {rows}")

    async def finish(self):
        async with self.session() as session:
            for database in self.points:
                rows = await self.query(session, self.site.url, database, "SELECT client, number FROM points")
                self.found[database] = {(int(row[1]), row[2]) for row in rows} if isinstance(rows, list) else set()

    async def check(self):
        for database, points in self.points.items():
            for client, count in sorted(points - self.found[database])[:5]:
                self.harm.add(self.name, f"{database}: point {client}/{count} was acknowledged and is missing")

    def summary(self):
        return f"{sum(map(len, self.points.values()))} points acknowledged, in {len(self.points)} databases"
