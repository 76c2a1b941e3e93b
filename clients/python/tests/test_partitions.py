"""Tests of the partition of a key: it is that of the router, whose answers stand in `clients/partitions.json`."""

import json
import pathlib
import unittest

from segue_pod import partition_of

VECTORS = pathlib.Path(__file__).parents[2] / "partitions.json"


class Partitions(unittest.TestCase):
    def test_a_key_is_in_the_partition_that_the_router_gives_it(self):
        vectors = json.loads(VECTORS.read_text())
        self.assertGreater(len(vectors["keys"]), 20)
        for vector in vectors["keys"]:
            key = bytes.fromhex(vector["key"])
            for hash in ("murmur2", "crc32", "fnv1a"):
                own = [partition_of(key, partitions, hash) for partitions in vectors["partitions"]]
                self.assertEqual(own, vector[hash], (key, hash))

    def test_text_is_its_bytes_and_the_default_is_that_of_the_router(self):
        self.assertEqual(partition_of("käse", 64), partition_of("käse".encode(), 64, "murmur2"))

    def test_a_hash_that_is_not_supported_is_an_error(self):
        with self.assertRaises(ValueError):
            partition_of("a", 64, "xxh3")
