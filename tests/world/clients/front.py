"""HTTP/2 by TLS and a proxy in front: curl and httpx speak HTTP/2 to the router with TLS, httpx also to HAProxy with
TLS, and aiohttp HTTP/1.1 to HAProxy without. HAProxy speaks HTTP/1.1 to the other router. Each client appends records,
and reads its last one. Some of curl's records are uploaded slowly, over some seconds, so that moves begin meanwhile."""

import asyncio
import json
import os
import ssl
import time

import aiohttp
import httpx

from harm import says_broken
from harness.ports import free_port
from harness.processes import Process
from harness.waiting import eventually
from harness.web import accepts

from .appends import Appends

# curl's codes for a connection that broke.
BROKEN = (52, 55, 56, 92)
# The bytes of a slow upload, and how many of them are sent in a second.
SLOW, RATE = 60_000, 20_000


class Front(Appends):
    name, program, prefix, key = "front", "http_log.py", "/front", {"path": "/front/{key}"}
    clients = 8

    async def prepare(self):
        plain, tls = free_port(), free_port()
        self.haproxy_url, self.haproxy_tls_url = f"http://127.0.0.1:{plain}", f"https://127.0.0.1:{tls}"
        both = os.path.join(self.folder, "haproxy.pem")
        with open(both, "w", encoding="utf-8") as out:
            for path in (self.site.certificate, self.site.key):
                with open(path, encoding="utf-8") as part:
                    out.write(part.read())
        config = os.path.join(self.folder, "haproxy.cfg")
        with open(config, "w", encoding="utf-8") as out:
            out.write(f"""
global
    nbthread 1
defaults
    mode http
    timeout connect 5s
    timeout client 120s
    timeout server 120s
frontend front
    bind 127.0.0.1:{plain}
    bind 127.0.0.1:{tls} ssl crt {both} alpn h2,http/1.1
    default_backend routers
backend routers
    server router 127.0.0.1:{self.site.port}
""")
        Process("haproxy", self.site.folder, ["haproxy", "-db", "-f", config])
        for port in (plain, tls):
            await eventually(lambda port=port: accepts(port), "HAProxy")
        self.versions = set()

    async def client(self, number):
        context = ssl.create_default_context(cafile=self.site.certificate)
        if number % 4 == 0:
            await self.send(number, self.by_curl, self.site.tls_url)
        elif number % 4 == 3:
            async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session:
                await self.send(number, lambda *request: self.by_aiohttp(session, *request), self.haproxy_url)
        else:
            url = (self.site.tls_url, self.haproxy_tls_url)[number % 4 - 1]
            async with httpx.AsyncClient(http2=True, verify=context, timeout=60) as client:
                await self.send(number, lambda *request: self.by_httpx(client, *request), url)

    async def send(self, number, request, url):
        random, way = self.random_of(number), number % 4
        for count in range(1_000_000):
            if self.is_over():
                return
            key, name = self.key_of(random.randrange(self.keys)), f"{number}/{count}"
            if way == 0 and random.random() < 0.1:
                name += "/" + "x" * SLOW
            if self.sabotage == "past-router" and random.random() < 0.1:
                await self.pass_by(random, key, name)
                continue
            answer = await self.one(request, way, key, "POST", f"{url}/front/{key}", name)
            if answer is not None:
                after = answer["position"] - 1
                names = await self.one(request, way, key, "GET", f"{url}/front/{key}?after={after}", None)
                if names is not None and names[:1] != [name]:
                    self.harm.add(self.name, f"{key}: {names[:1]} in place of {name[:20]}, which was acknowledged")
            await asyncio.sleep(random.uniform(0.02, 0.2))

    async def one(self, request, way, key, method, url, body):
        """Sends one request. Returns its answer, or None if it failed."""
        began = time.time()
        status, text, is_broken, version = await request(method, url, body)
        if status != 200:
            what = f"{method} {url} (way {way}): {status} {text[:200]}"
            self.failed(key, began, what, is_broken or says_broken(status, text))
            return None
        self.versions.add((way, version))
        answer = json.loads(text)
        if method == "POST":
            self.acknowledge(key, body, answer["position"], began)
        else:
            self.succeeded(began)
        return answer

    async def pass_by(self, random, key, name):
        """Sends a record straight to the service of some pod, as only a sidecar should."""
        pod = random.choice(self.site.pods[self.name])
        try:
            async with aiohttp.ClientSession() as session:
                async with session.post(f"http://127.0.0.1:{pod.port}/front/{key}", data=name) as response:
                    self.acknowledge(key, name, (await response.json())["position"], time.time())
        except aiohttp.ClientError:
            pass

    async def by_curl(self, method, url, body):
        command = ["curl", "--silent", "--show-error", "--http2", "--cacert", self.site.certificate, "--max-time", "60",
                   "--request", method, "--write-out", "\n%{http_code} %{http_version}", url]
        if body:
            command += ["--data-binary", "@-"]
        if body and len(body) > SLOW:
            command += ["--limit-rate", str(RATE)]
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate((body or "").encode())
        text, _, last = output.decode().rpartition("\n")
        status, version = last.split()
        if process.returncode:
            return None, f"exit {process.returncode}: {text}", process.returncode in BROKEN, version
        return int(status), text, False, version

    async def by_httpx(self, client, method, url, body):
        try:
            response = await client.request(method, url, content=body)
            return response.status_code, response.text, False, response.http_version.removeprefix("HTTP/")
        except httpx.TransportError as error:
            return None, repr(error), not isinstance(error, httpx.TimeoutException), None

    async def by_aiohttp(self, session, method, url, body):
        try:
            async with session.request(method, url, data=body) as response:
                version = f"{response.version.major}.{response.version.minor}"
                return response.status, await response.text(), False, version
        except TimeoutError:
            return None, "no response within 60 s", False, None
        except aiohttp.ClientError as error:
            return None, repr(error), True, None

    async def check(self):
        await super().check()
        if self.versions != {(0, "2"), (1, "2"), (2, "2"), (3, "1.1")}:
            self.harm.add(self.name, f"not the versions of HTTP that it is about: {sorted(self.versions, key=str)}")
