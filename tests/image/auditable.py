#!/usr/bin/env python3
"""Reads the list of crates that cargo-auditable has put into a binary, and compares it with the bill of materials.

    tests/image/auditable.py target/release/segue segue.cdx.json

Prints how many crates are listed as part of the program. Scanners read the same section: `.dep-v0`, JSON compressed by zlib.
"""

import json
import struct
import sys
import zlib


def section(binary, wanted):
    """Returns the content of a section of a 64-bit little-endian ELF file."""
    assert binary[:6] == b"\x7fELF\x02\x01", "no 64-bit little-endian ELF file"
    [headers] = struct.unpack_from("<Q", binary, 0x28)
    size, count, names = struct.unpack_from("<HHH", binary, 0x3A)
    # Of each section: the offset of its name, and then its own offset and size.
    found = [struct.unpack_from("<I20xQQ", binary, headers + number * size) for number in range(count)]
    start = found[names][1]
    for name, offset, length in found:
        if binary.startswith(wanted + b"\0", start + name):
            return binary[offset:offset + length]
    raise AssertionError(f"the binary has no section {wanted.decode()}")


def main():
    with open(sys.argv[1], "rb") as file:
        packages = json.loads(zlib.decompress(section(file.read(), b".dep-v0")))["packages"]
    with open(sys.argv[2], encoding="utf-8") as file:
        bill = json.load(file)
    [root] = [one["name"] for one in packages if one.get("root")]
    assert root == "segue", root
    # Crates that only build scripts and macros use have another kind.
    listed = {(one["name"], one["version"]) for one in packages if one.get("kind", "runtime") == "runtime"}
    billed = {(one["name"], one["version"]) for one in [*bill["components"], bill["metadata"]["component"]]}
    assert billed <= listed, f"linked, but not listed in the binary: {sorted(billed - listed)}"
    print(len(listed))


if __name__ == "__main__":
    main()
