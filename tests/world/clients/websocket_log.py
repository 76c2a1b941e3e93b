"""WebSockets by the library `websockets`, half of them over TLS: each message is a record. Moves sever the connections,
and the clients connect again. A message that is not answered is not sent again."""

import asyncio
import json
import ssl
import time

import websockets

from harm import says_broken

from .appends import Appends

# Within this time a message is answered, or its connection ends.
ANSWER = 60


class WebSocket(Appends):
    name, program, prefix, key = "websocket", "websocket_log.py", "/ws", {"path": "/ws/{key}"}
    clients = 8

    def __init__(self, *rest):
        super().__init__(*rest)
        # The library may close a connection while the service still works on one of its messages.
        self.has_drain_hook = self.sabotage != "no-drain-hook"
        if not self.has_drain_hook:
            self.options += ["--takes", "0.5"]

    async def client(self, number):
        random, key, count = self.random_of(number), self.key_of(number), 0
        url = f"{(self.site.url, self.site.tls_url)[number % 2].replace('http', 'ws', 1)}/ws/{key}"
        context = ssl.create_default_context(cafile=self.site.certificate) if number % 2 else None
        while not self.is_over():
            began = time.time()
            try:
                connection = await websockets.connect(url, ssl=context, proxy=None, open_timeout=60)
            except (OSError, websockets.WebSocketException) as error:
                is_broken = isinstance(error, (ConnectionError, websockets.InvalidMessage))
                if isinstance(error, websockets.InvalidStatus):
                    is_broken = says_broken(error.response.status_code, str(error.response.body))
                self.failed(key, began, f"handshake: {error!r}", is_broken)
                await asyncio.sleep(0.2)
                continue
            self.reconnects += count > 0
            try:
                while not self.is_over():
                    count += 1
                    name, began = f"{number}/{count}", time.time()
                    await connection.send(name)
                    answer = json.loads(await asyncio.wait_for(connection.recv(), ANSWER))
                    assert answer["name"] == name, f"{answer} in place of the answer to {name}"
                    self.acknowledge(key, name, answer["position"], began)
                    await asyncio.sleep(random.uniform(0.02, 0.2))
            except websockets.ConnectionClosed:
                # As docs/pods.md says of moves. What was not answered may have been stored.
                self.ends(began)
            except TimeoutError:
                self.failed(key, began, f"message {name}: no answer within {ANSWER} s", is_broken=False)
            await connection.close()
