"""Tests of the ASGI application in front of a service, without a server."""

import unittest

from segue_pod.asgi import Asgi
from test_ownership import owning, stamps


async def respond(send, *headers, status=200):
    await send({"type": "http.response.start", "status": status, "headers": list(headers)})
    await send({"type": "http.response.body", "body": b"hello"})


class Requests(unittest.IsolatedAsyncioTestCase):
    async def ask(self, app, headers=(), ownership=None, kind="http", extensions=()):
        """Returns the messages that the server gets for a request with these headers."""
        scope = {"type": kind, "headers": [(name.encode(), value.encode()) for name, value in headers]}
        scope["extensions"] = dict.fromkeys(extensions, {})
        sent = []

        async def receive():
            raise AssertionError("the body is not asked for")

        async def send(message):
            sent.append(message)

        await Asgi(app, ownership or owning())(scope, receive, send)
        return sent

    async def test_an_owned_request_reaches_the_application_which_learns_what_is_owned(self):
        async def app(scope, receive, send):
            self.assertEqual((scope["segue"].partition, scope["segue"].epoch), (0, 5))
            await respond(send)

        start, body = await self.ask(app, stamps())
        self.assertEqual((start["status"], body["body"]), (200, b"hello"))

    async def test_any_other_request_is_answered_421_without_the_application(self):
        start, body = await self.ask(None, stamps(epoch="6"))
        self.assertEqual((start["status"], body["body"]), (421, b""))
        self.assertIn((b"segue-misdirected", b"1"), start["headers"])

    async def test_a_421_of_the_application_is_marked_as_its_own_unless_it_has_a_mark(self):
        for given, expected in (([], b"0"), ([(b"Segue-Misdirected", b"1")], b"1")):

            async def app(scope, receive, send):
                await respond(send, *given, status=421)

            start, _ = await self.ask(app, stamps())
            self.assertEqual([value for name, value in start["headers"] if name.lower() == b"segue-misdirected"], [expected])

    async def test_a_response_that_begins_after_the_lease_has_ended_is_replaced(self):
        ownership = owning()

        async def app(scope, receive, send):
            ownership.fence()
            await respond(send)

        start, body = await self.ask(app, stamps(), ownership)
        self.assertEqual((start["status"], body["body"]), (500, b""))
        self.assertIn((b"segue-reason", b"lease-lost"), start["headers"])

    async def test_a_websocket_is_refused_with_421_where_the_server_can(self):
        start, _ = await self.ask(None, [], kind="websocket", extensions=["websocket.http.response"])
        self.assertEqual((start["type"], start["status"]), ("websocket.http.response.start", 421))
        self.assertEqual([it["type"] for it in await self.ask(None, [], kind="websocket")], ["websocket.close"])

    async def test_what_is_no_request_passes(self):
        async def app(scope, receive, send):
            await send({"type": "lifespan.startup.complete"})

        self.assertEqual(len(await self.ask(app, kind="lifespan")), 1)


if __name__ == "__main__":
    unittest.main()
