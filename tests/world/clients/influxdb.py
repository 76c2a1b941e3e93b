"""InfluxDB: clients write points of several databases, half of them by HTTP/2 over TLS, and count their own now and then. A point
whose response did not come is not sent again. One that was acknowledged is counted from then on, and is there in the end.

InfluxDB keeps one of two equal points, so a request that took effect twice does not show here.
"""

import collections
import time

from .over_http import OverHttp


class InfluxDb(OverHttp):
    name, program, prefix, key = "influxdb", "influxdb.py", "/influxdb", {"query": "db"}
    databases = [f"db-{number}" for number in range(8)]

    def __init__(self, *rest):
        super().__init__(*rest)
        # Without it the storages of a pod that lives stay locked.
        self.has_drain_hook = self.sabotage != "no-drain-hook"
        self.points = collections.defaultdict(set)  # by database: the clients and numbers of acknowledged points
        self.found = {}  # by database: those that are there in the end

    async def prepare(self):
        async with self.session() as session:
            for database in self.databases:
                rows = await self.query(session, self.site.url, database, f'CREATE DATABASE "{database}"')
                assert rows is not None, self.harm.failures

    async def query(self, session, url, database, text):
        """Returns the rows of a query, or None if it failed."""
        began = time.time()
        answer = await self.send(session, database, "POST", f"{url}/influxdb/query", params={"db": database}, data={"q": text})
        if answer is None:
            return None
        self.succeeded(began)
        [series] = answer.json()["results"][0].get("series", [{"values": []}])
        return series["values"]

    async def step(self, session, url, random, number, count):
        database, began = random.choice(self.databases), time.time()
        point = f"points,client={number} number={count}i {time.time_ns()}"
        answer = await self.send(session, database, "POST", f"{url}/influxdb/write", params={"db": database}, content=point)
        if answer is not None:
            self.succeeded(began)
            self.points[database].add((number, count))
        if random.random() < 0.1:
            await self.count(session, url, database, number)

    async def count(self, session, url, database, number):
        """Counts this client's points. Those that were acknowledged before are among them."""
        known = sum(client == number for client, _ in self.points[database])
        rows = await self.query(session, url, database, f"SELECT count(number) FROM points WHERE client = '{number}'")
        if rows is not None and known > (rows[0][1] if rows else 0):
            self.harm.add(self.name, f"{database}: client {number} has written {known} points and counts {rows}")

    async def finish(self):
        async with self.session() as session:
            for database in self.points:
                rows = await self.query(session, self.site.url, database, "SELECT client, number FROM points")
                self.found[database] = {(int(client), number) for _, client, number in rows or []}

    async def check(self):
        for database, points in self.points.items():
            for client, count in sorted(points - self.found[database])[:5]:
                self.harm.add(self.name, f"{database}: point {client}/{count} was acknowledged and is missing")

    def summary(self):
        return f"{sum(map(len, self.points.values()))} points acknowledged, in {len(self.points)} databases"
