"""One kind of load, played against a proxy, and the statistics over rounds."""

import statistics
import subprocess
import sys
import time

from proxies import FRONTS

KEYS = 997


class Load:
    """`size`: bytes of the response, and of the request if `post`."""

    def __init__(self, front="h1", post=False, size=256, connections=64, requests=60_000, rate=None, seconds=3):
        self.front, self.post, self.size, self.connections = front, post, size, connections
        self.requests, self.rate, self.seconds = requests, rate, seconds

    def label(self):
        method = "unary calls" if self.front == "grpc" else "POST" if self.post else "GET"
        at = f", {self.rate:,}/s" if self.rate else ""
        return f"{FRONTS[self.front]}, {method} {human(self.size)}, {self.connections} connections{at}"

    def floor(self):
        """The load by which the byte pump is measured: it cannot translate."""
        front = "h1" if self.front in ("h2", "tls1", "tls2") else self.front
        return Load(front, self.post, self.size, self.connections, self.requests, self.rate, self.seconds)

    def command(self, port, folder, log):
        """h2load's command line, but for the header that names the partition and for the numbers."""
        scheme = "https" if self.front.startswith("tls") else "http"
        uris = folder / f"uris-{scheme}-{self.size}"
        if not uris.exists():
            uris.write_text("".join(f"{scheme}://localhost/{self.size}?id={key}\n" for key in range(KEYS)))
        command = ["h2load", "-t", "1", "-m", "4" if self.front == "grpc" else "1", "--log-file", str(log)]
        command += ["-i", str(uris), "-B", f"{scheme}://127.0.0.1:{port}"]
        if self.front in ("h1", "tls1", "many"):
            command.append("--h1")
        if scheme == "https":
            command += ["--tls13-ciphers", "TLS_AES_128_GCM_SHA256", "--groups", "X25519"]
        if self.post:
            body = folder / f"body-{self.front == 'grpc'}-{self.size}"
            if not body.exists():
                # A message of gRPC begins with its length.
                head = b"\0" + (self.size - 5).to_bytes(4, "big") if self.front == "grpc" else b""
                body.write_bytes(head.ljust(self.size, b"x"))
            command += ["-d", str(body)]
        if self.front == "grpc":
            command += ["-H", "content-type: application/grpc", "-H", "te: trailers"]
        return command

    def run(self, proxy, site):
        """One round: CPU time in µs a request, requests a second, latencies in µs."""
        log = [site.folder / f"log-{number}" for number in range(3)]
        loads = []
        for number, partition in enumerate(site.partitions):
            log[number].unlink(missing_ok=True)
            connections = share(self.connections, number)
            command = self.command(proxy.ports[self.front], site.folder, log[number])
            command += ["-c", str(connections), "-H", f"x-partition: {partition}"]
            if self.rate:
                # h2load's rate is for each connection, and whole.
                each = max(1, self.rate // self.connections)
                command += ["--rps", str(each), "-n", str(each * connections * self.seconds)]
            else:
                command += ["-n", str(share(self.requests, number))]
            loads.append(command)
        asked = sum(int(command[-1]) for command in loads)
        before, began = proxy.cpu(), time.monotonic()
        running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in loads]
        said = [load.communicate(timeout=300)[0] for load in running]
        took, after = time.monotonic() - began, proxy.cpu()
        micros = []
        for path in log:
            with path.open() as lines:
                for line in lines:
                    _, status, micro = line.split("\t")
                    if status == "200":
                        micros.append(int(micro))
        if len(micros) != asked:
            print(*said, sep="\n", file=sys.stderr)
            sys.exit(f"peers: {proxy.name} answered {len(micros)} of {asked} requests with 200 ({self.label()})")
        micros.sort()
        ran, user, system = (now - then for now, then in zip(after, before))
        # The scheduler counts nanoseconds, but does not tell user from system; the ticks do.
        cpu, of_user = ran / len(micros), user / max(1, user + system)
        return {
            "cpu_us": cpu,
            "user_us": cpu * of_user,
            "system_us": cpu * (1 - of_user),
            "per_s": len(micros) / took,
            "p50_us": micros[len(micros) // 2],
            "p99_us": micros[len(micros) * 99 // 100],
        }


def share(total, number, among=3):
    return total // among + (number < total % among)


def human(size):
    for unit, scale in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= scale:
            return f"{size // scale} {unit}"
    return f"{size} B"


def compare(load, proxies, rounds, site):
    """What each proxy needs for this load: per figure the rounds' values."""
    results = {proxy.name: [] for proxy in proxies}
    for turn in range(rounds):
        # Nobody is always the first after a pause.
        for index in range(len(proxies)):
            proxy = proxies[(index + turn) % len(proxies)]
            played = load if load.front in proxy.ports else load.floor()
            results[proxy.name].append(played.run(proxy, site))
    figures = {name: {figure: [it[figure] for it in runs] for figure in runs[0]} for name, runs in results.items()}
    for runs in figures.values():
        if "byte pump" in figures:
            floor = figures["byte pump"]["cpu_us"]
            runs["own_us"] = [one - least for one, least in zip(runs["cpu_us"], floor)]
    return figures


def ratio(results, name, to, figure):
    """The median over the rounds of one proxy's figure over another's."""
    if name not in results or to not in results or figure not in results[name]:
        return float("nan")
    pairs = zip(results[name][figure], results[to][figure])
    return statistics.median(one / other if other > 0 else float("nan") for one, other in pairs)
