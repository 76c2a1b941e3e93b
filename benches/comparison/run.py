#!/usr/bin/env python3
"""Segue beside HAProxy, nginx, Envoy and a minimal Pingora proxy: the same load, the same pods, one run.

The figure that counts is the proxy's CPU time a request (user + system, of all its threads and processes, over the
requests done): on a noisy machine it is the robust one, and it is what a fleet pays for. A byte pump that makes the same
system calls and reads no HTTP is the floor; what a proxy needs above it is its own cost. Rounds are interleaved, each figure
is a median over them, with the least and the most.

All proxies have one worker and run from the beginning, idle until it is their turn. Behind them are nginx (for gRPC
nghttpd), in front of them h2load. All route by the header x-partition to three pods, or by a key to thirty; Segue looks
the partition up among 64 and passes its gate.
"""

import argparse
import json
import os
import resource
import signal
import statistics
import sys
import tempfile
from functools import partial
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests"))

from backends import Pods  # noqa: E402
from harness.etcd import Etcd  # noqa: E402
from harness.processes import end_all  # noqa: E402
from measure import Load, compare, ratio  # noqa: E402
from plot import picture  # noqa: E402
from processes import stop_all  # noqa: E402
from proxies import MAKERS, Site, segue  # noqa: E402

LOADS = [
    Load(),
    Load("h2"),
    Load(post=True),
    Load("h2", post=True),
    Load(post=True, size=4096),
    Load("h2", post=True, size=4096),
    Load("grpc", post=True, connections=16),
    Load("tls1", post=True),
    Load("tls2", post=True),
    Load("many", post=True),
]
LONG = [
    *(Load(size=size, requests=40_000 if size < 1 << 16 else 4_000) for size in (64, 1024, 16 << 10, 1 << 20)),
    *(Load(post=True, connections=connections) for connections in (512, 4096)),
    Load("h2", size=1 << 20, requests=4_000),
    Load("h2", post=True, connections=512),
]
# Heading, figure, form, and whether the least and the most of the rounds are shown.
COLUMNS = [
    ("CPU µs a request", "cpu_us", ".1f", True),
    ("user", "user_us", ".1f", False),
    ("system", "system_us", ".1f", False),
    ("own", "own_us", ".1f", True),
    ("requests/s", "per_s", ",.0f", False),
    ("p50 µs", "p50_us", ",.0f", False),
    ("p99 µs", "p99_us", ",.0f", True),
]


def print_table(load, results):
    print(f"\n### {load.label()}\n")
    print("| | " + " | ".join(heading for heading, *_ in COLUMNS) + " | × HAProxy | own × HAProxy's |")
    print("| --- |" + " --- |" * (len(COLUMNS) + 2))
    for name, figures in results.items():
        cells = []
        for _, figure, form, spread in COLUMNS:
            values = figures.get(figure, [float("nan")])
            cell = f"{statistics.median(values):{form}}"
            cells.append(f"{cell} ({min(values):{form}}–{max(values):{form}})" if spread else cell)
        times = [f"{ratio(results, name, 'HAProxy', figure):.2f}" for figure in ("cpu_us", "own_us")]
        print(f"| {name} | " + " | ".join([*cells, *times]) + " |")
    sys.stdout.flush()


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds of each load")
    parser.add_argument("--long", action="store_true", help="also bodies of 64 B to 1 MiB and 512 to 4,096 connections")
    parser.add_argument("--only", default="", help="only these proxies, comma between them (Segue and HAProxy always are)")
    parser.add_argument("--loads", default="", help="only loads whose heading has one of these texts, semicolon between them")
    parser.add_argument("--rate", type=int, default=9984, help="requests a second where the rate is fixed")
    parser.add_argument("--requests", type=int, help="this many requests a round, in place of each load's own number")
    parser.add_argument("--segue", type=Path, help="this executable in place of target/release/segue")
    parser.add_argument("--beside", type=Path, help="another executable of Segue to compare with")
    parser.add_argument("--json", type=Path, help="write every figure of every round here")
    parser.add_argument("--plot", type=Path, help="draw the CPU time beside HAProxy's here (SVG)")
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    # Debian installs servers in a directory that is only on root's path.
    os.environ["PATH"] += ":/usr/sbin"
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    names = [name for name in arguments.only.split(",") if name]
    texts = [text for text in arguments.loads.split(";") if text]
    loads = [*LOADS, Load(post=True, rate=arguments.rate), Load("h2", post=True, rate=arguments.rate)]
    loads += LONG if arguments.long else []
    if arguments.requests:
        for load in loads:
            load.requests, load.seconds = arguments.requests, 1
    loads = [load for load in loads if not texts or any(text in load.label() for text in texts)]

    collected = {}
    # As Ctrl-C does: the processes are stopped on the way out.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="segue-peers-") as name:
        folder = Path(name)
        # nginx's workers, who read the bodies, are another user where this one is root.
        folder.chmod(0o755)
        try:
            makers = dict(MAKERS)
            if arguments.segue:
                makers["Segue"] = partial(segue, program=arguments.segue.resolve())
            if arguments.beside:
                makers["Segue beside"] = partial(segue, program=arguments.beside.resolve(), name="Segue beside")
            site, proxies = Site(folder, Pods(folder), Etcd(folder)), []
            for name, make in makers.items():
                if not names or name in ("Segue", "Segue beside", "HAProxy", *names):
                    print(f"peers: starting {name}", file=sys.stderr)
                    proxies.append(make(site))
            for load in loads:
                print(f"peers: {load.label()}", file=sys.stderr)
                able = [proxy for proxy in proxies if load.front in proxy.ports or proxy.name == "byte pump"]
                # One round that does not count: connections come up, caches fill.
                warm = Load(load.front, load.post, load.size, load.connections, min(load.requests, 6_000))
                compare(warm, able, 1, site)
                results = compare(load, able, arguments.rounds, site)
                collected[load.label()] = results
                print_table(load, results)
        except KeyboardInterrupt:
            sys.exit("peers: interrupted")
        finally:
            stop_all()
            end_all()
    if arguments.json:
        arguments.json.write_text(json.dumps(collected, indent=1))
    if arguments.plot:
        arguments.plot.write_text(picture(collected))
    last = {
        "h1_vs_haproxy": (LOADS[0], "cpu_us"),
        "h2_vs_haproxy": (LOADS[1], "cpu_us"),
        "post_h1_vs_haproxy": (LOADS[2], "cpu_us"),
        "post_h2_vs_haproxy": (LOADS[3], "cpu_us"),
        "own_vs_haproxy": (LOADS[2], "own_us"),
    }
    ratios = {key: ratio(collected.get(load.label(), {}), "Segue", "HAProxy", figure) for key, (load, figure) in last.items()}
    print("\npeers: " + " ".join(f"{key}={value:.3f}" for key, value in ratios.items()))


if __name__ == "__main__":
    main()
