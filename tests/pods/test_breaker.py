"""Tests of the forwarder whose connections can be broken: `python -m unittest`, as `cargo test --workspace --test process
python_pods::` does."""

import asyncio
import contextlib
import os
import sys
import unittest
import unittest.mock

sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from breaker import Breaker  # noqa: E402
from harness.ports import free_port  # noqa: E402

PATIENCE = 60


class Closing(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self):
        self.served = set()
        server = await asyncio.start_server(lambda *streams: self.served.add(streams), "127.0.0.1", 0)
        self.addCleanup(server.close)
        self.breaker = await Breaker(free_port(), server.sockets[0].getsockname()[1]).start()

    async def test_it_ends_connections_on_which_both_sides_are_silent(self):
        reader, _ = await asyncio.open_connection("127.0.0.1", self.breaker.port)
        while not self.served:
            await asyncio.sleep(0.01)
        await asyncio.wait_for(self.breaker.close(), PATIENCE)
        with contextlib.suppress(ConnectionError):
            await asyncio.wait_for(reader.read(), PATIENCE)

    async def test_it_does_not_wait_for_connections_whose_far_side_is_about_to_be_connected(self):
        opened, may_go_on, connect = asyncio.Event(), asyncio.Event(), asyncio.open_connection

        async def slow(*address):
            opened.set()
            await may_go_on.wait()
            return await connect(*address)

        with unittest.mock.patch("asyncio.open_connection", slow):
            client = await connect("127.0.0.1", self.breaker.port)
            await asyncio.wait_for(opened.wait(), PATIENCE)
            asyncio.get_running_loop().call_later(0.1, may_go_on.set)
            await asyncio.wait_for(self.breaker.close(), PATIENCE)
        client[1].close()


if __name__ == "__main__":
    unittest.main()
