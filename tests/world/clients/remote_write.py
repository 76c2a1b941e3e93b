"""Prometheus as the client: it scrapes a counter of the test, and writes its samples to the service, for each tenant by
a queue of its own. What Prometheus has in its own storage has to arrive.

The receiver is the test's, because Prometheus keeps what it receives in a storage that two processes cannot share. The
tenant is in the path, because Debian's Prometheus 2.42 does not send its setting `headers`. Prometheus sends a request
that got a 5xx again. So a retry counts as a failed request, and a sample may be there twice only if its tenant's queue
had retries.
"""

import asyncio
import collections
import json
import os
import re
import time

import aiohttp
from aiohttp import web

from harness.ports import free_port
from harness.processes import Process
from work import read

from .service import Service

TENANTS = [f"tenant-{number}" for number in range(6)]
COUNTER = "world_scrapes"
QUEUE = {"max_shards": 1, "max_samples_per_send": 20, "batch_send_deadline": "100ms", "max_backoff": "1s"}
# In the end the last sample has arrived within this time.
CATCH_UP = 60


class RemoteWrite(Service):
    name, program, prefix, key = "prometheus", "remote_write.py", "/receive", {"path": "/receive/{key}"}
    clients = 1

    async def prepare(self):
        self.scrapes, self.retried, self.samples = 0, collections.Counter(), 0
        self.port, exporter = free_port(), free_port()
        app = web.Application()
        app.router.add_get("/metrics", self.count)
        self.exporter = web.AppRunner(app, access_log=None)
        await self.exporter.setup()
        await web.TCPSite(self.exporter, "127.0.0.1", exporter).start()
        writes = [{
            "name": tenant, "remote_timeout": "60s",
            "url": f"{(self.site.url, self.site.tls_url)[number % 2]}/receive/{tenant}",
            "tls_config": {"ca_file": self.site.certificate},
            "write_relabel_configs": [{"source_labels": ["tenant"], "regex": tenant, "action": "keep"}],
            "metadata_config": {"send": False},
            "queue_config": QUEUE,
        } for number, tenant in enumerate(TENANTS)]
        scrape = {"job_name": "world", "scrape_interval": "200ms", "scrape_timeout": "200ms",
                  "static_configs": [{"targets": [f"127.0.0.1:{exporter}"]}]}
        config = os.path.join(self.folder, "prometheus.yml")
        with open(config, "w", encoding="utf-8") as out:
            # JSON is YAML.
            json.dump({"scrape_configs": [scrape], "remote_write": writes}, out)
        Process("prometheus-client", self.site.folder, [
            "prometheus", f"--config.file={config}", f"--storage.tsdb.path={self.folder}/prometheus",
            f"--web.listen-address=127.0.0.1:{self.port}",
        ])

    async def count(self, _):
        """Answers a scrape, each with other values."""
        if not self.is_over():
            self.scrapes += 1
        lines = [f'{COUNTER}{{tenant="{tenant}"}} {self.scrapes}\n' for tenant in TENANTS]
        return web.Response(text="".join(lines), content_type="text/plain")

    async def ask(self, path, **query):
        async with self.session.get(f"http://127.0.0.1:{self.port}{path}", params=query) as response:
            return await response.text()

    async def metric(self, name):
        """Returns a metric of Prometheus itself, by tenant."""
        lines = re.findall(rf'^{name}{{.*remote_name="([^"]+)".*}} (\S+)$', await self.ask("/metrics"), re.MULTILINE)
        return {tenant: float(value) for tenant, value in lines}

    async def client(self, number):
        self.session = aiohttp.ClientSession()
        while not self.is_over():
            began = time.time()
            await asyncio.sleep(0.5)
            try:
                await self.watch_queues(began)
            except aiohttp.ClientError:
                continue

    async def watch_queues(self, began):
        for tenant, count in (await self.metric("prometheus_remote_storage_samples_retried_total")).items():
            if count > self.retried[tenant]:
                what = f"{count - self.retried[tenant]:.0f} samples sent again"
                self.harm.failed(self.name, tenant, began, what, is_broken=True)
                self.retried[tenant] = count
        batches = await self.metric("prometheus_remote_storage_sent_batch_duration_seconds_count")
        self.requests = self.acknowledged = int(sum(batches.values()))

    async def finish(self):
        """Waits until all that Prometheus has in its own storage has arrived."""
        deadline = time.monotonic() + CATCH_UP
        self.missing = {}
        while time.monotonic() < deadline:
            await self.compare()
            if self.scraped and not any(self.missing.values()):
                return
            await asyncio.sleep(0.5)

    async def compare(self):
        # Those of the last second may still be on their way, and are asked for the next time.
        answer = json.loads(await self.ask("/api/v1/query", query=f"{COUNTER}[2h]"))
        self.scraped = {}
        for series in answer["data"]["result"]:
            samples = {(round(at * 1000), float(value)) for at, value in series["values"]}
            self.scraped[series["metric"]["tenant"]] = samples
        arrived = {tenant: self.arrived(tenant) for tenant in TENANTS}
        if self.samples == 0:
            # The counter stands still at the end; what comes after this moment proves nothing.
            self.samples = sum(map(len, self.scraped.values()))
            self.last = {tenant: max(at for at, _ in samples) for tenant, samples in self.scraped.items()}
        self.missing = {
            tenant: {sample for sample in samples if sample[0] <= self.last.get(tenant, 0)} - set(arrived[tenant])
            for tenant, samples in self.scraped.items()
        }

    def arrived(self, tenant):
        records = read(os.path.join(self.folder, "samples", tenant))
        return [(record["at"], record["value"]) for record in records if record["name"] == COUNTER]

    async def check(self):
        await self.watch_queues(time.time() - 1)
        for tenant, count in (await self.metric("prometheus_remote_storage_samples_failed_total")).items():
            if count:
                self.harm.add(self.name, f"{tenant}: Prometheus has given up {count:.0f} samples")
        for tenant in TENANTS:
            arrived, missing = self.arrived(tenant), self.missing.get(tenant)
            if missing is None or not arrived:
                self.harm.add(self.name, f"{tenant}: Prometheus has no samples of it")
            elif missing:
                self.harm.add(self.name, f"{tenant}: {len(missing)} samples are missing, first {min(missing)}")
            twice = [sample for sample, count in collections.Counter(arrived).items() if count > 1]
            if len(twice) > self.retried[tenant]:
                what = f"{len(twice)} samples are there twice, {self.retried[tenant]} were sent again"
                self.harm.add(self.name, f"{tenant}: {what}")
            if not self.retried[tenant] and arrived != sorted(arrived):
                self.harm.add(self.name, f"{tenant}: its samples are not in the order of their time")
        await self.session.close()
        await self.exporter.cleanup()

    def summary(self):
        return f"{self.samples} samples of {len(TENANTS)} tenants, {sum(self.retried.values()):.0f} sent again"
