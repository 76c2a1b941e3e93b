#!/usr/bin/env python3
"""Segue beside HAProxy, nginx and a minimal Pingora proxy: the same load, the same backend, one run.

The figure that counts is the proxy's CPU time a request (user + system, of all its threads and processes, over the
requests done): on a noisy machine it is the robust one, and it is what a fleet pays for. Rounds are interleaved, each
figure is a median over them, with the least and the most.

All proxies run from the beginning, idle until it is their turn. Behind them is one nginx, in front of them h2load.
Segue routes by a key's hash or by header, over 64 partitions, through its gates; the others send everything to the
one backend, and add x-forwarded-for (Pingora does not).
"""

import argparse
import json
import os
import resource
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from plot import picture

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
SIZES = [64, 256, 1024, 16 * 1024, 1024 * 1024]
PARTITIONS = 64
KEYS = 997
TICKS = os.sysconf("SC_CLK_TCK")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for(port, process, name):
    for _ in range(400):
        if process.poll() is not None:
            sys.exit(f"peers: {name} has ended: see its output above")
        try:
            socket.create_connection(("127.0.0.1", port), 0.2).close()
            return
        except OSError:
            time.sleep(0.025)
    sys.exit(f"peers: {name} does not listen on port {port} after 10 s")


class Running:
    """A process and its children."""

    def __init__(self, name, port, command, **options):
        self.name, self.port = name, port
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, **options)
        wait_for(port, self.process, name)

    def pids(self):
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return [self.process.pid, *map(int, children)]

    def cpu(self):
        """Seconds of CPU time so far."""
        total = 0
        for pid in self.pids():
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            total += int(fields[11]) + int(fields[12])
        return total / TICKS

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()


def nginx(folder, name, http):
    configuration = folder / f"{name}.conf"
    configuration.write_text(
        f"""daemon off; pid {folder}/{name}.pid; error_log stderr crit;
events {{ worker_connections 16384; }}
worker_processes 2;
http {{
  access_log off; keepalive_requests 100000000; keepalive_timeout 600s; tcp_nodelay on; sendfile on;
  client_body_temp_path {folder}/{name}-body; proxy_temp_path {folder}/{name}-proxy;
  fastcgi_temp_path {folder}/{name}-fcgi; uwsgi_temp_path {folder}/{name}-uwsgi; scgi_temp_path {folder}/{name}-scgi;
  {http}
}}
"""
    )
    path = os.environ["PATH"] + ":/usr/sbin"
    return [shutil.which("nginx", path=path), "-c", str(configuration), "-p", str(folder), "-e", "stderr"]


def backend(folder):
    port = free_port()
    (folder / "bodies").mkdir()
    places = ""
    for size in SIZES:
        (folder / "bodies" / str(size)).write_bytes(b"x" * size)
        if size <= 4096:
            places += f"location = /{size} {{ return 200 {'x' * size}; }}\n"
    http = f"""open_file_cache max=100; default_type application/octet-stream;
  server {{ listen 127.0.0.1:{port} backlog=8192; root {folder}/bodies; {places} }}"""
    return Running("backend", port, nginx(folder, "backend", http))


def segue(folder, behind, name, partition):
    port = free_port()
    configuration = folder / f"{name}.toml"
    # The one pod is the backend itself: the sidecar registers it, and no request goes through it.
    configuration.write_text(
        f"""keyspace = "peers"
[store]
kind = "memory"
[router]
listen = "127.0.0.1:{port}"
workers = 2
[router.partition]
{partition}
[router.upstream]
protocol = "http1"
max_idle_per_pod = 4096
[coordinator]
partitions = {PARTITIONS}
listen = "127.0.0.1:0"
[pod]
listen = "127.0.0.1:{free_port()}"
advertise = "127.0.0.1:{behind}"
upstream = "127.0.0.1:{behind}"
[admin]
listen = "127.0.0.1:0"
[log]
level = "warn"
"""
    )
    return Running(name, port, [str(ROOT / "target/release/segue"), "run", "--config", str(configuration)])


def haproxy(folder, behind):
    port, port2 = free_port(), free_port()
    configuration = folder / "haproxy.cfg"
    configuration.write_text(
        f"""global
  maxconn 9000
  nbthread 2
defaults
  mode http
  timeout connect 1s
  timeout client 60s
  timeout server 60s
  http-reuse always
  option forwardfor
frontend front
  bind 127.0.0.1:{port} backlog 8192
  bind 127.0.0.1:{port2} proto h2 backlog 8192
  default_backend back
backend back
  server one 127.0.0.1:{behind} maxconn 9000 pool-max-conn 4096
"""
    )
    running = Running("HAProxy", port, ["haproxy", "-db", "-f", str(configuration)])
    running.port_http2 = port2
    return running


def nginx_proxy(folder, behind):
    port, port2 = free_port(), free_port()
    passing = """location / { proxy_pass http://back; proxy_http_version 1.1; proxy_set_header Connection "";
    proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for; }"""
    http = f"""upstream back {{ server 127.0.0.1:{behind}; keepalive 4096; keepalive_requests 100000000; }}
  server {{ listen 127.0.0.1:{port} backlog=8192 reuseport; {passing} }}
  server {{ listen 127.0.0.1:{port2} http2 backlog=8192 reuseport; {passing} }}"""
    running = Running("nginx", port, nginx(folder, "front", http))
    running.port_http2 = port2
    return running


def pingora(behind):
    subprocess.run(["cargo", "build", "--release", "--locked", "--quiet"], cwd=HERE / "pingora", check=True)
    port = free_port()
    program = HERE / "pingora/target/release/peer-pingora"
    return Running("Pingora", port, [str(program), f"127.0.0.1:{port}", f"127.0.0.1:{behind}"])


class Load:
    """One kind of load."""

    def __init__(self, http2=False, size=256, connections=64, requests=40_000, rate=None, seconds=3):
        self.http2, self.size, self.connections = http2, size, connections
        self.requests, self.rate, self.seconds = requests, rate, seconds

    def label(self):
        at = f", {self.rate}/s" if self.rate else ""
        return f"HTTP/{2 if self.http2 else '1.1'}, {self.connections} connections, {human(self.size)}{at}"

    def run(self, proxy, folder):
        port = getattr(proxy, "port_http2", proxy.port) if self.http2 else proxy.port
        uris, log = folder / f"uris-{self.size}", folder / "log"
        if not uris.exists():
            uris.write_text("".join(f"http://127.0.0.1/{self.size}?id={key}\n" for key in range(KEYS)))
        log.unlink(missing_ok=True)
        command = ["h2load", "-c", str(self.connections), "-t", "1", "-m", "1", "--log-file", str(log)]
        command += ["-H", "x-partition: 7", "-i", str(uris), "-B", f"http://127.0.0.1:{port}"]
        command += [] if self.http2 else ["--h1"]
        if self.rate:
            # h2load's rate is for each connection, and whole.
            each = max(1, self.rate // self.connections)
            command += ["--rps", str(each), "-n", str(self.rate * self.seconds)]
        else:
            command += ["-n", str(self.requests)]
        before, began = proxy.cpu(), time.monotonic()
        said = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout
        took, used = time.monotonic() - began, proxy.cpu() - before
        micros = []
        with log.open() as lines:
            for line in lines:
                _, status, micro = line.split("\t")
                if status == "200":
                    micros.append(int(micro))
        asked = self.rate * self.seconds if self.rate else self.requests
        if len(micros) != asked:
            print(said, file=sys.stderr)
            sys.exit(f"peers: {proxy.name} answered {len(micros)} of {asked} requests with 200 ({self.label()})")
        micros.sort()
        return {
            "cpu_us": used / len(micros) * 1e6,
            "per_s": len(micros) / took,
            "p50_us": micros[len(micros) // 2],
            "p99_us": micros[len(micros) * 99 // 100],
        }


def human(size):
    for unit, scale in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= scale:
            return f"{size // scale} {unit}"
    return f"{size} B"


def compare(load, proxies, rounds, folder):
    """What each proxy needs for this load: per figure the rounds' values."""
    results = {proxy.name: [] for proxy in proxies}
    for turn in range(rounds):
        # Nobody is always the first after a pause.
        for index in range(len(proxies)):
            proxy = proxies[(index + turn) % len(proxies)]
            results[proxy.name].append(load.run(proxy, folder))
    return {name: {figure: [it[figure] for it in runs] for figure in runs[0]} for name, runs in results.items()}


def ratio(results, name, to, figure):
    """The median over the rounds of one proxy's figure over another's."""
    return statistics.median(a / b for a, b in zip(results[name][figure], results[to][figure]))


def print_table(load, results):
    print(f"\n### {load.label()}\n")
    print("| | CPU µs a request | × HAProxy | requests/s | p50 µs | p99 µs |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, figures in results.items():
        def cell(figure, form):
            values = figures[figure]
            return f"{statistics.median(values):{form}} ({min(values):{form}}–{max(values):{form}})"
        times = f"{ratio(results, name, 'HAProxy', 'cpu_us'):.2f}" if name != "direct" else "–"
        cpu = cell("cpu_us", ".1f") if name != "direct" else "–"
        print(f"| {name} | {cpu} | {times} | {cell('per_s', ',.0f')} | {cell('p50_us', ',.0f')} | {cell('p99_us', ',.0f')} |")
    sys.stdout.flush()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=4, help="interleaved rounds of each load")
    parser.add_argument("--long", action="store_true", help="also bodies of 64 B to 1 MiB and 512 to 4,096 connections")
    parser.add_argument("--only", default="", help="only these proxies, by name, comma between them (HAProxy is always there)")
    parser.add_argument("--rate", type=int, default=6400, help="requests a second where the rate is fixed")
    parser.add_argument("--json", type=Path, help="write every figure of every round here")
    parser.add_argument("--plot", type=Path, help="draw the CPU time beside HAProxy's here (SVG)")
    arguments = parser.parse_args()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    chosen = [name for name in arguments.only.split(",") if name]

    with tempfile.TemporaryDirectory(prefix="segue-peers-") as name:
        folder = Path(name)
        # nginx's workers, who read the bodies, are another user where this one is root.
        folder.chmod(0o755)
        running = [backend(folder)]
        behind = running[0].port
        try:
            makers = {
                "HAProxy": lambda: haproxy(folder, behind),
                "nginx": lambda: nginx_proxy(folder, behind),
                "Pingora": lambda: pingora(behind),
                "Segue, key": lambda: segue(folder, behind, "Segue, key", 'key = { query = "id" }'),
                "Segue, header": lambda: segue(folder, behind, "Segue, header", 'header = "x-partition"'),
            }
            for known, make in makers.items():
                if not chosen or known == "HAProxy" or any(known.startswith(it) for it in chosen):
                    print(f"peers: starting {known}", file=sys.stderr)
                    running.append(make())
            proxies = running[1:]
            direct = Running.__new__(Running)
            direct.__dict__.update(running[0].__dict__, name="direct")
            loads = [Load(), Load(http2=True), Load(rate=arguments.rate), Load(http2=True, rate=arguments.rate)]
            if arguments.long:
                loads += [Load(size=size, requests=40_000 if size < 1 << 16 else 4_000) for size in SIZES if size != 256]
                loads += [Load(connections=connections) for connections in (512, 4096)]
                loads += [Load(http2=True, size=1 << 20, requests=4_000), Load(http2=True, connections=512)]
            for load in loads[:1] + [Load(http2=True)]:
                load = Load(http2=load.http2, requests=4_000)
                compare(load, proxies, 1, folder)
            collected = []
            for load in loads:
                among = proxies if load.http2 else [direct, *proxies]
                print(f"peers: {load.label()}", file=sys.stderr)
                results = compare(load, among, arguments.rounds, folder)
                collected.append({"load": load.__dict__, "label": load.label(), "results": results})
                print_table(load, results)
            if arguments.json:
                arguments.json.write_text(json.dumps(collected, indent=1))
            if arguments.plot:
                arguments.plot.write_text(picture(collected))
        finally:
            for it in running:
                it.stop()
        name = next((it.name for it in proxies if it.name.startswith("Segue")), None)
        ratios = {
            key: ratio(entry["results"], name, "HAProxy", "cpu_us") if name else float("nan")
            for key, entry in zip(("h1_vs_haproxy", "h2_vs_haproxy"), collected)
        }
        print("\npeers: " + " ".join(f"{key}={value:.3f}" for key, value in ratios.items()))


if __name__ == "__main__":
    main()
