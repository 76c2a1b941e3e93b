"""What is checked, and the table of what came out."""

import asyncio
import time
import traceback
from dataclasses import dataclass

from harness.processes import tails

CHECKS = []
LONGEST = 60.0
# For those that only run with `--long`.
MUCH_LONGER = 300.0


@dataclass
class Check:
    protocol: str
    client: str
    server: str
    what: str
    run: object
    long: bool


def check(protocol, client, server, what, long=False):
    def register(function):
        CHECKS.append(Check(protocol, client, server, what, function, long))
        return function

    return register


async def run_all(fixture, only, long):
    chosen = [one for one in CHECKS if long or not one.long]
    chosen = [one for one in chosen if only in " ".join((one.protocol, one.client, one.server, one.what))]
    assert chosen, f"no check has {only!r} in its line"
    widths = [max(len(getattr(one, field)) for one in chosen) for field in ("protocol", "client", "server", "what")]

    def line(cells, result):
        print(" | ".join([cell.ljust(width) for cell, width in zip(cells, widths)] + [result]), flush=True)

    line(("protocol", "client", "server", "checked"), "result")
    failures = []
    for one in chosen:
        begun = time.monotonic()
        try:
            await asyncio.wait_for(one.run(fixture), MUCH_LONGER if one.long else LONGEST)
            result = f"passed {time.monotonic() - begun:.1f}s"
        except Exception:  # noqa: BLE001: whatever it is, the check has failed
            failures.append((one, traceback.format_exc()))
            result = "FAILED"
        line((one.protocol, one.client, one.server, one.what), result)
    for one, why in failures:
        print(f"\n{one.protocol} | {one.client} | {one.server} | {one.what}\n{why}")
    if failures:
        print(tails())
    print(f"foreign: checks={len(chosen)} passed={len(chosen) - len(failures)} failed={len(failures)}")
    return not failures
