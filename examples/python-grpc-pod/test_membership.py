"""Tests of `membership.py` without a coordinator: `python -m unittest`, as `cargo test --workspace --test python_pods` does."""

import types
import unittest

from membership import Membership, lease_now


class Service:
    async def release(self, partition):
        pass


def welcome(incarnation):
    span = types.SimpleNamespace(seconds=10, nanos=0)
    return types.SimpleNamespace(incarnation=incarnation, resume=b"", resumed=False, trust=span, lease_ttl=span)


async def live(membership, incarnation):
    """Begins a life that owns partition 0 at epoch 1, with a lease that lasts."""
    await membership.welcomed(welcome(incarnation))
    membership.owned[0] = 1
    membership.trusted_until = membership.stands_until = lease_now() + 60


class Lives(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self):
        self.membership = Membership((None, None), ["127.0.0.1:1"], "default", "a", "127.0.0.1:2", 10, Service())
        await live(self.membership, 7)

    async def test_a_request_of_an_earlier_life_may_not_write(self):
        async with self.membership.request(0, 1) as life:
            self.assertTrue(self.membership.may_write(life))
            await live(self.membership, 8)
            self.assertFalse(self.membership.may_write(life))
            async with self.membership.request(0, 1) as later:
                self.assertTrue(self.membership.may_write(later))

    async def test_a_fenced_pod_neither_accepts_nor_writes(self):
        async with self.membership.request(0, 1) as life:
            self.membership.fence()
            self.assertFalse(self.membership.may_write(life))
        async with self.membership.request(0, 1) as life:
            self.assertIsNone(life)


if __name__ == "__main__":
    unittest.main()
