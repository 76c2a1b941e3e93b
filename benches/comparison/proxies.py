"""The proxies that are compared, each with one worker, and how each is told to route.

Every proxy serves the fronts of `FRONTS` that it can: by the header x-partition to one of three pods, or by the query's `id`
to one of thirty. All add x-forwarded-for, but for Pingora and the byte pump.
"""

import json
import resource
import subprocess
from pathlib import Path

from backends import PARTITIONS, nginx_command, register
from harness.certificates import self_signed
from harness.ports import free_port
from harness.segue import ANYWHERE, Segue, at
from processes import Running

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
# Each takes two open files.
CONNECTIONS = min(9000, resource.getrlimit(resource.RLIMIT_NOFILE)[1] // 2 - 500)
FRONTS = {
    "h1": "HTTP/1.1",
    "h2": "HTTP/2",
    "tls1": "HTTP/1.1 over TLS",
    "tls2": "HTTP/2 over TLS",
    "many": "HTTP/1.1, 30 pods",
    "grpc": "gRPC, HTTP/2 on both sides",
}


class Proxy:
    """A proxy with its processes, and the port of each front that it serves."""

    def __init__(self, name, processes, ports):
        self.name, self.processes, self.ports = name, processes, ports

    def cpu(self):
        return [sum(kind) for kind in zip(*(process.cpu() for process in self.processes))]


class Site:
    """What the proxies have in common: pods, a certificate, and the partitions that clients name, one of each of three pods."""

    partitions = [0, 1, 2]

    def __init__(self, folder, pods, etcd):
        self.folder, self.pods, self.etcd = folder, pods, etcd
        self.cert, self.key = map(Path, self_signed(folder))
        both = folder / "both.pem"
        both.write_text(self.cert.read_text() + self.key.read_text())
        self.both = both


def segue(site, program=ROOT / "target/release/segue", name="Segue"):
    processes, ports = [], {}

    def start(kind, pods, partition, protocol, fronts, tls=None):
        port, keyspace = free_port(), f"{name}-{kind}".lower().replace(" ", "-")
        register(site.etcd, keyspace, pods)
        configuration = Segue(program, site.folder, site.etcd, keyspace).configure(keyspace, {
            "router": {
                "listen": at(port), "workers": 1, "partition": partition, "limits": {"max_in_flight_per_client": 0},
                "upstream": {"protocol": protocol, "max_idle_per_pod": 4096},
            } | (tls or {}),
            "admin": {"listen": ANYWHERE}, "coordinator": {"partitions": PARTITIONS, "listen": ANYWHERE}, "log": {"level": "error"},
        })
        processes.append(Running(name, port, [program, "run", "--config", configuration]))
        ports.update(dict.fromkeys(fronts, port))

    header = {"header": "x-partition"}
    start("three", site.pods.three, header, "http1", ["h1", "h2"])
    tls = {"tls": {"cert": str(site.cert), "key": str(site.key)}}
    start("tls", site.pods.three, header, "http1", ["tls1", "tls2"], tls)
    start("many", site.pods.thirty, {"key": {"query": "id"}}, "http1", ["many"])
    start("grpc", site.pods.grpc, header, "http2", ["grpc"])
    return Proxy(name, processes, ports)


def haproxy(site):
    ports = {front: free_port() for front in FRONTS}
    bind = {
        "h1": "",
        "h2": "proto h2",
        "tls1": f"ssl crt {site.both} alpn http/1.1",
        "tls2": f"ssl crt {site.both} alpn h2",
        "many": "",
        "grpc": "proto h2",
    }
    text = f"""global
  maxconn {CONNECTIONS}
  nbthread 1
  # Or it closes idle connections to pods once a quarter of its files is in use.
  tune.pool-low-fd-ratio 85
  tune.pool-high-fd-ratio 90
defaults
  mode http
  maxconn {CONNECTIONS}
  timeout connect 1s
  timeout client 60s
  timeout server 60s
  http-reuse always
  option forwardfor
"""
    for front, port in ports.items():
        text += f"frontend {front}\n  bind 127.0.0.1:{port} backlog 8192 {bind[front]}\n"
        if front == "many":
            text += "  default_backend many\n"
            continue
        kind = "grpc" if front == "grpc" else "pod"
        for number, partition in enumerate(site.partitions):
            text += f"  use_backend {kind}{number} if {{ req.hdr(x-partition) {partition} }}\n"
    connections = f"maxconn {CONNECTIONS} pool-max-conn 4096"
    for number in range(3):
        text += f"backend pod{number}\n  server s 127.0.0.1:{site.pods.three[number]} {connections}\n"
        text += f"backend grpc{number}\n  server s 127.0.0.1:{site.pods.grpc[number]} proto h2 {connections}\n"
    text += "backend many\n  balance url_param id\n  hash-type consistent\n"
    text += "".join(f"  server s{number} 127.0.0.1:{port} {connections}\n" for number, port in enumerate(site.pods.thirty))
    configuration = site.folder / "haproxy.cfg"
    configuration.write_text(text)
    return Proxy("HAProxy", [Running("HAProxy", ports["h1"], ["haproxy", "-db", "-f", configuration])], ports)


def nginx(site):
    ports = {front: free_port() for front in FRONTS}
    options = {"h1": "", "h2": "http2", "tls1": "ssl", "tls2": "ssl http2", "many": "", "grpc": "http2"}
    keep = "keepalive 4096; keepalive_requests 100000000;"
    http = "map $http_x_partition $number { "
    http += " ".join(f"{partition} {number};" for number, partition in enumerate(site.partitions)) + " }\n"
    for number in range(3):
        http += f"upstream pod{number} {{ server 127.0.0.1:{site.pods.three[number]}; {keep} }}\n"
        http += f"upstream grpc{number} {{ server 127.0.0.1:{site.pods.grpc[number]}; {keep} }}\n"
    servers = " ".join(f"server 127.0.0.1:{port};" for port in site.pods.thirty)
    http += f"upstream many {{ hash $arg_id consistent; {servers} {keep} }}\n"
    http += f"ssl_certificate {site.cert}; ssl_certificate_key {site.key}; ssl_protocols TLSv1.3;\n"
    forward = "proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;"
    for front, port in ports.items():
        to = "many" if front == "many" else "pod$number"
        passing = f'proxy_pass http://{to}; proxy_http_version 1.1; proxy_set_header Connection ""; {forward}'
        if front == "grpc":
            passing = f"grpc_pass grpc://grpc$number; {forward.replace('proxy_set', 'grpc_set')}"
        http += f"server {{ listen 127.0.0.1:{port} {options[front]} backlog=8192; location / {{ {passing} }} }}\n"
    command = nginx_command(site.folder, "front", http)
    return Proxy("nginx", [Running("nginx", ports["h1"], command)], ports)


def envoy(site):
    binary = next(ROOT.glob(".tools/peers/lib/python3*/site-packages/envoy/_bin/envoy"))
    ports = {front: free_port() for front in FRONTS}
    limits = {"thresholds": [{f"max_{what}": 2 * CONNECTIONS for what in ("connections", "pending_requests", "requests")}]}

    def cluster(name, addresses, http2=False):
        endpoints = [
            {"endpoint": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": port}}}} for port in addresses
        ]
        explicit = {"http2_protocol_options": {}} if http2 else {"http_protocol_options": {}}
        protocol = {
            "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
            "explicit_http_config": explicit,
        }
        return {
            "name": name,
            "connect_timeout": "1s",
            "lb_policy": "RING_HASH" if len(addresses) > 1 else "ROUND_ROBIN",
            "circuit_breakers": limits,
            "typed_extension_protocol_options": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": protocol},
            "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": endpoints}]},
        }

    def routes(front):
        if front == "many":
            by = [{"query_parameter": {"name": "id"}}]
            return [{"match": {"prefix": "/"}, "route": {"cluster": "many", "hash_policy": by, "timeout": "60s"}}]
        kind = "grpc" if front == "grpc" else "pod"
        return [
            {
                "match": {"prefix": "/", "headers": [{"name": "x-partition", "string_match": {"exact": str(partition)}}]},
                "route": {"cluster": f"{kind}{number}", "timeout": "60s"},
            }
            for number, partition in enumerate(site.partitions)
        ]

    def listener(front):
        manager = {
            "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
            "stat_prefix": front,
            "codec_type": "HTTP1" if front in ("h1", "tls1", "many") else "HTTP2",
            "use_remote_address": True,
            "generate_request_id": False,
            "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": routes(front)}]},
            "http_filters": [
                {
                    "name": "envoy.filters.http.router",
                    "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"},
                }
            ],
        }
        chain = {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
        if front.startswith("tls"):
            certificate = {"certificate_chain": {"filename": str(site.cert)}, "private_key": {"filename": str(site.key)}}
            common = {"tls_certificates": [certificate], "alpn_protocols": ["http/1.1" if front == "tls1" else "h2"]}
            kind = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext"
            chain["transport_socket"] = {
                "name": "envoy.transport_sockets.tls",
                "typed_config": {"@type": kind, "common_tls_context": common},
            }
        address = {"socket_address": {"address": "127.0.0.1", "port_value": ports[front]}}
        return {"name": front, "address": address, "filter_chains": [chain], "tcp_backlog_size": 8192}

    clusters = [cluster("many", site.pods.thirty)]
    for number in range(3):
        clusters.append(cluster(f"pod{number}", [site.pods.three[number]]))
        clusters.append(cluster(f"grpc{number}", [site.pods.grpc[number]], http2=True))
    configuration = site.folder / "envoy.json"
    document = {"static_resources": {"listeners": [listener(front) for front in FRONTS], "clusters": clusters}}
    configuration.write_text(json.dumps(document, indent=1))
    command = [binary, "-c", configuration, "--concurrency", 1, "--log-level", "error", "--disable-hot-restart"]
    return Proxy("Envoy", [Running("Envoy", ports["h1"], command)], ports)


def pingora(site):
    port = free_port()
    pairs = [f"{partition}=127.0.0.1:{pod}" for partition, pod in zip(site.partitions, site.pods.three)]
    program = build("pingora", "peer-pingora")
    running = Running("Pingora", port, [program, f"127.0.0.1:{port}", *pairs])
    return Proxy("Pingora", [running], {"h1": port, "h2": port})


def byte_pump(site):
    """The floor. It moves bytes, so that HTTP/2 or TLS in front of HTTP/1.1 is measured against its HTTP/1.1."""
    program = build("byte_pump", "byte-pump")
    processes, ports = [], {}
    for fronts, pods in ((["h1"], site.pods.three), (["many"], site.pods.thirty), (["grpc"], site.pods.grpc)):
        port = free_port()
        command = [program, f"127.0.0.1:{port}", *(f"127.0.0.1:{pod}" for pod in pods)]
        processes.append(Running("the byte pump", port, command))
        ports.update(dict.fromkeys(fronts, port))
    return Proxy("byte pump", processes, ports)


def build(folder, program):
    subprocess.run(["cargo", "build", "--release", "--locked", "--quiet"], cwd=HERE / folder, check=True)
    return HERE / folder / "target/release" / program


MAKERS = {
    "Segue": segue,
    "HAProxy": haproxy,
    "nginx": nginx,
    "Envoy": envoy,
    "Pingora": pingora,
    "byte pump": byte_pump,
}
