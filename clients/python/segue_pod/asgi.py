"""Admits requests to an ASGI application: those of partitions that the pod owns.

Invariants:

* A 421 is sent before the application is called, and without reading the body.
* No response begins after the lease has ended: its request may have written what the next owner has not seen.
"""

from .ownership import MISDIRECTED

MARK = MISDIRECTED.encode()


class Asgi:
    """An application in front of another one. The scope of an admitted request has its `Owned` as `segue`."""

    def __init__(self, app, ownership):
        self.app, self.ownership = app, ownership

    async def __call__(self, scope, receive, send):
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
        async with self.ownership.admit(headers) as owned:
            if owned is None:
                await respond(scope, send, 421, [(MARK, b"1")])
            else:
                await self.app({**scope, "segue": owned}, receive, guarded(scope, send, owned))


def guarded(scope, send, owned):
    """Returns the `send` of an admitted request."""
    is_lost = False

    async def sent(message):
        nonlocal is_lost
        kind = message["type"]
        if kind in ("http.response.start", "websocket.http.response.start", "websocket.accept"):
            is_lost = not owned.may_write()
            if is_lost:
                await respond(scope, send, 500, [(b"segue-reason", b"lease-lost")])
            elif message.get("status") == 421 and not any(name.lower() == MARK for name, _ in message.get("headers", ())):
                # The service's own, which is meant for the client.
                message = {**message, "headers": [*message.get("headers", ()), (MARK, b"0")]}
        if not is_lost:
            await send(message)

    return sent


async def respond(scope, send, status, headers):
    """Sends a response without a body. A server without the extension for responses to WebSockets answers 403 instead."""
    prefix = "http.response"
    if scope["type"] == "websocket":
        if "websocket.http.response" not in scope.get("extensions", {}):
            await send({"type": "websocket.close", "code": 1012})
            return
        prefix = "websocket.http.response"
    await send({"type": f"{prefix}.start", "status": status, "headers": [(b"content-length", b"0"), *headers]})
    await send({"type": f"{prefix}.body", "body": b""})
