"""The partition of a key, as routers compute it (`[router.partition] hash`)."""

import zlib


def partition_of(key, partitions, hash="murmur2"):
    """Returns the partition of `key`, bytes or text, among `partitions`. `hash` is `murmur2`, `crc32` or `fnv1a`."""
    key = key.encode() if isinstance(key, str) else bytes(key)
    if hash == "murmur2":
        return (_murmur2(key) & 0x7FFFFFFF) % partitions
    if hash == "crc32":
        return zlib.crc32(key) % partitions
    if hash == "fnv1a":
        number = _fnv1a(key)
        return (number if number < 1 << 31 else (1 << 32) - number) % partitions
    raise ValueError(f"{hash!r} is not supported here; expected murmur2, crc32 or fnv1a")


def _murmur2(key):
    """MurmurHash2 with the seed of Kafka's `Utils.murmur2`."""
    m, mask = 0x5BD1E995, 0xFFFFFFFF
    number = 0x9747B28C ^ len(key)
    whole = len(key) & ~3
    for at in range(0, whole, 4):
        k = int.from_bytes(key[at : at + 4], "little") * m & mask
        number = (number * m & mask) ^ ((k ^ k >> 24) * m & mask)
    if whole < len(key):
        number = (number ^ int.from_bytes(key[whole:], "little")) * m & mask
    number = (number ^ number >> 13) * m & mask
    return number ^ number >> 15


def _fnv1a(key):
    number = 0x811C9DC5
    for byte in key:
        number = (number ^ byte) * 0x01000193 & 0xFFFFFFFF
    return number
