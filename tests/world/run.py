"""Real services of other projects behind Segue, with their own clients, while their partitions move and their pods end.

`make world`, or shorter `make world ARGS=--short`; `ARGS="--only git"` plays one service, `ARGS="--seed 7"` repeats the
choices of a run. Each service has three pods that share a folder as their storage, which is safe exactly because one
pod owns a partition at a time. Operators move partitions, pods end by SIGTERM and SIGKILL and come back.

Harm is: an acknowledged write that is missing in the end; one that is there twice; two pods that work on one key at
once; a request that fails, unless its pod was killed at that moment; a move that exceeds its bound; a check of a
service's own that fails. WebSockets and streams may be severed by moves, and their clients connect again.

Three faults show that harm is noticed. With `--sabotage acknowledge-early` the services with logs (gRPC, WebSocket,
front) respond before they store. With `past-router` clients of `front` send past the routers to some pod. With
`no-drain-hook` three services lack their hook `drain`: that of WebSockets is slow, and its library closes a severed
connection before its last message is worked on; those of SQLite and InfluxDB keep their databases locked.
"""

import argparse
import asyncio
import logging
import os
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path += [os.path.dirname(HERE), os.path.join(HERE, "services")]

from clients.front import Front  # noqa: E402
from clients.git import Git  # noqa: E402
from clients.grpc_log import Grpc  # noqa: E402
from clients.influxdb import InfluxDb  # noqa: E402
from clients.radicale_dav import Radicale  # noqa: E402
from clients.registry import Registry  # noqa: E402
from clients.remote_write import RemoteWrite  # noqa: E402
from clients.sqlite_asgi import Sqlite  # noqa: E402
from clients.websocket_log import WebSocket  # noqa: E402
from faults import Faults  # noqa: E402
from harm import Harm  # noqa: E402
from harness.processes import folder_of_processes  # noqa: E402
from site_of_services import Site  # noqa: E402
from work import journals  # noqa: E402

SERVICES = [Git, Grpc, WebSocket, Radicale, RemoteWrite, InfluxDb, Registry, Sqlite, Front]
SABOTAGES = ("acknowledge-early", "past-router", "no-drain-hook")
PROGRESS = 10
# How long clients may take for what they have begun.
LAST_REQUESTS = 120


async def report(services, faults, view, harm):
    while True:
        await asyncio.sleep(PROGRESS)
        parts = [f"{one.name} moves={view.moves[one.name]} requests={one.requests}" for one in services]
        kills = sum(fault.done["pods killed"] + fault.done["services killed"] for fault in faults)
        at = time.time() - harm.began
        print(f"  {at:.0f} s: {', '.join(parts)}; {kills} kills, {len(harm.failures)} requests failed", flush=True)


def check_work(service, harm):
    """Checks what the pods noted of their work. Returns by key the partition that its requests had."""
    partitions = dict(service.partitions_of_keys())
    for key, notes in journals(service.folder).items():
        epoch = 0
        for note in notes:
            if note["what"] == "overlap":
                harm.add(service.name, f"{key}: {note['pod']} works on it beside {note['other']}", note["at"])
            elif note["epoch"] < epoch:
                harm.add(service.name, f"{key}: {note['pod']} works at epoch {note['epoch']} after {epoch}", note["at"])
            else:
                epoch = note["epoch"]
                partitions[key] = note["partition"]
    return partitions


async def play(site, services, arguments, harm):
    await site.begin(services)
    for service in services:
        await service.prepare()
    harm.began = time.time()
    print(f"  {len(services)} services with their pods are up; seed {arguments.seed}", flush=True)
    faults = [Faults(site, service, harm, arguments.seed) for service in services]
    counting = asyncio.create_task(site.view.count_moves())
    reporting = asyncio.create_task(report(services, faults, site.view, harm))
    playing = asyncio.gather(*(service.play() for service in services))
    end = time.monotonic() + arguments.seconds
    await asyncio.gather(*(fault.play(end) for fault in faults))
    for service in services:
        service.over.set()
    done, _ = await asyncio.wait([playing], timeout=LAST_REQUESTS)
    if not done:
        harm.add("all", f"clients have not ended {LAST_REQUESTS} s after the last fault")
        playing.cancel()
    counting.cancel()
    reporting.cancel()
    for service, fault in zip(services, faults):
        await verdict(site, service, fault, harm)


async def verdict(site, service, fault, harm):
    await service.finish()
    await service.check()
    excused = harm.judge(service.name, check_work(service, harm))
    moves = site.view.moves[service.name]
    done = ", ".join(f"{count} {what}" for what, count in sorted(fault.done.items()))
    print(f"  {service.name}: {moves} handoffs ({done}), slowest move {fault.slowest_move:.1f} s")
    print(f"  {service.name}: {service.requests} requests, slowest {service.slowest:.1f} s, {excused} failed in kills")
    print(f"  {service.name}: {service.summary()}")
    if not moves or not service.acknowledged:
        harm.add(service.name, "no moves or no requests: nothing was tested")


async def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--segue", required=True, help="the binary")
    arguments.add_argument("--short", action="store_true", help="45 seconds of faults")
    arguments.add_argument("--seconds", type=int, default=540, help="duration of the faults")
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--only", default="", help="services with one of these in their names, separated by commas")
    arguments.add_argument("--sabotage", choices=SABOTAGES, help="a fault that the checks have to notice")
    arguments.add_argument("--keep", help="a new folder for all files, which stays")
    arguments = arguments.parse_args()
    if arguments.short:
        arguments.seconds = 45
    # The client reports each write to a peer that is gone, which some peers here are meant to be.
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    harm = Harm()
    wanted = [kind for kind in SERVICES if any(part in kind.name for part in arguments.only.split(","))]

    def shows_tails(failed):
        return (harm.found or failed) and not arguments.sabotage

    with folder_of_processes("world", arguments.keep, shows_tails) as folder:
        site = Site(os.path.abspath(arguments.segue), folder)
        try:
            services = [kind(site, harm, arguments.seed, arguments.sabotage) for kind in wanted]
            await play(site, services, arguments, harm)
        finally:
            await site.view.store.close()
    harm.show()
    moves, requests = sum(site.view.moves.values()), sum(service.requests for service in services)
    print(f"world: services={len(services)} moves={moves} requests={requests} harm={len(harm.found)}")
    return not harm.found


if __name__ == "__main__":
    sys.exit(0 if asyncio.run(main()) else 1)
