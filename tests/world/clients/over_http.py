"""Clients that send requests by httpx, half of them by HTTP/2 over TLS, and how these fail."""

import asyncio
import ssl
import time

import httpx

from harm import says_broken

from .service import Service


class OverHttp(Service):
    """A subclass has `step(session, url, random, number, count)`, which is what a client does time and again."""

    clients = 8

    def session(self):
        return httpx.AsyncClient(http2=True, verify=ssl.create_default_context(cafile=self.site.certificate), timeout=60)

    async def client(self, number):
        random, url = self.random_of(number), (self.site.url, self.site.tls_url)[number % 2]
        async with self.session() as session:
            for count in range(1_000_000):
                if self.is_over():
                    return
                await self.step(session, url, random, number, count)
                await asyncio.sleep(random.uniform(0.02, 0.2))

    async def send(self, session, key, method, url, **request):
        """Sends one request. Returns its response, or None if it failed, which is noted."""
        began = time.time()
        try:
            response = await session.request(method, url, **request)
        except httpx.TransportError as error:
            self.failed(key, began, f"{method} {url}: {error!r}", not isinstance(error, httpx.TimeoutException))
            return None
        if response.is_success:
            return response
        is_broken = says_broken(response.status_code, response.text)
        self.failed(key, began, f"{method} {url}: {response.status_code} {response.text[:200]}", is_broken)
        return None
