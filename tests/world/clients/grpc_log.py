"""gRPC by grpcio: clients append by unary calls, half of them over TLS, while for each key a stream without end shows
all records. Moves end streams, and their clients open them again after the last record that they have seen."""

import asyncio
import json
import time

import grpc

from .appends import Appends

# After the last append each stream has shown it within this time.
CATCH_UP = 60


def to_json(message):
    return json.dumps(message).encode()


class Grpc(Appends):
    name, program, prefix, key = "grpc", "grpc_log.py", "/world.Log", {"header": "x-key"}
    clients = 6

    async def play(self):
        self.watched = {}
        with open(self.site.certificate, "rb") as certificate:
            credentials = grpc.ssl_channel_credentials(certificate.read())
        plain, tls = (url.split("//")[1] for url in (self.site.url, self.site.tls_url))
        self.channels = [grpc.aio.insecure_channel(plain), grpc.aio.secure_channel(tls, credentials)]
        self.watches = [asyncio.create_task(self.watch(number)) for number in range(self.keys)]
        await super().play()

    async def client(self, number):
        random = self.random_of(number)
        append = self.channels[number % 2].unary_unary("/world.Log/Append", to_json, json.loads)
        for count in range(1_000_000):
            if self.is_over():
                return
            key, name, began = self.key_of(random.randrange(self.keys)), f"{number}/{count}", time.time()
            try:
                answer = await append({"name": name}, metadata=(("x-key", key),), timeout=60)
                self.acknowledge(key, name, answer["position"], began)
            except grpc.aio.AioRpcError as error:
                code, details = error.code(), error.details()
                is_broken = code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN)
                self.failed(key, began, f"Append {name}: {code.name} {details}", is_broken)
            await asyncio.sleep(random.uniform(0.02, 0.15))

    async def watch(self, number):
        key = self.key_of(number)
        watch = self.channels[number % 2].unary_stream("/world.Log/Watch", to_json, json.loads)
        while True:
            try:
                async for record in watch({"after": self.watched.get(key, 0)}, metadata=(("x-key", key),)):
                    expected = self.watched.get(key, 0) + 1
                    if record["position"] != expected:
                        self.harm.add(self.name, f"{key}: the stream shows {record['position']} in place of {expected}")
                    self.watched[key] = record["position"]
            except grpc.aio.AioRpcError:
                self.reconnects += 1
                await asyncio.sleep(0.05)

    async def finish(self):
        deadline = time.monotonic() + CATCH_UP
        ends = {self.key_of(number): len(self.stored(self.key_of(number))) for number in range(self.keys)}
        while any(self.watched.get(key, 0) < end for key, end in ends.items()) and time.monotonic() < deadline:
            await asyncio.sleep(0.1)
        for key, end in ends.items():
            if self.watched.get(key, 0) < end:
                self.harm.add(self.name, f"{key}: its stream ends at {self.watched.get(key, 0)} of {end}")
        for watch in self.watches:
            watch.cancel()
        for channel in self.channels:
            await channel.close()
