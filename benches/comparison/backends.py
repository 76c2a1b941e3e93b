"""What stands behind the proxies: pods that answer at once, and their records in the etcd in which Segue finds them."""

import shutil
import time

from harness.ports import free_port
from processes import Running

SIZES = [64, 256, 1024, 4096, 16 * 1024, 1024 * 1024]
PARTITIONS = 64
# The longest that a comparison may take: pods are registered for this long.
LEASE_SECONDS = 4 * 3600


def nginx_command(folder, name, http):
    """nginx with one worker."""
    configuration = folder / f"{name}.conf"
    configuration.write_text(
        f"""daemon off; pid {folder}/{name}.pid; error_log stderr crit;
events {{ worker_connections 16384; }}
worker_processes 1;
http {{
  access_log off; keepalive_requests 100000000; keepalive_timeout 600s; tcp_nodelay on; sendfile on;
  client_body_temp_path {folder}/{name}-body; proxy_temp_path {folder}/{name}-proxy;
  fastcgi_temp_path {folder}/{name}-fcgi; uwsgi_temp_path {folder}/{name}-uwsgi; scgi_temp_path {folder}/{name}-scgi;
  {http}
}}
"""
    )
    return [shutil.which("nginx"), "-c", configuration, "-p", folder, "-e", "stderr"]


class Pods:
    """Ports of pods: three and thirty of nginx, which share one process, and three that speak gRPC's HTTP/2."""

    def __init__(self, folder):
        self.thirty = [free_port() for _ in range(30)]
        self.three = self.thirty[:3]
        self.grpc = [free_port() for _ in range(3)]
        (folder / "bodies").mkdir()
        places = ""
        for size in SIZES:
            (folder / "bodies" / str(size)).write_bytes(b"x" * size)
            if size <= 4096:
                # nginx takes no parameter of more than 4,095 bytes.
                piece = min(size, 1024)
                places += f"location = /{size} {{ set $piece {'x' * piece}; return 200 {'$piece' * (size // piece)}; }}\n"
        listens = " ".join(f"listen 127.0.0.1:{port} backlog=8192;" for port in self.thirty)
        http = f"""open_file_cache max=100; default_type application/octet-stream;
  server {{ {listens} root {folder}/bodies; {places} }}"""
        Running("the pods", self.three[0], nginx_command(folder, "pods", http))
        for port in self.grpc:
            # It sends the request's body back, and ends with a status as gRPC wants it.
            command = ["nghttpd", "--no-tls", "--echo-upload", "--trailer", "grpc-status: 0", "-a", "127.0.0.1", port]
            Running("a gRPC pod", port, command)


def register(etcd, keyspace, ports):
    """Registers a pod at each of these ports, and gives partition `n` to pod `n` of them, round and round."""
    root, lease, now = f"/segue/{keyspace}/", etcd.grant(LEASE_SECONDS), int(time.time() * 1000)
    incarnations = []
    for number, port in enumerate(ports):
        record = {"pod_name": f"pod-{number}", "address": f"127.0.0.1:{port}", "status": "Ready", "registered_at": now}
        record |= {"last_heartbeat": now, "weight": 1.0, "zone": None, "capabilities": []}
        incarnations.append(etcd.put_records(root, {f"pods/pod-{number}": record}, lease))
    for partition in range(PARTITIONS):
        pod = partition % len(ports)
        record = {"partition": partition, "owner": f"pod-{pod}", "incarnation": incarnations[pod]}
        etcd.put_records(root, {f"assignments/{partition}": record | {"status": "Active", "epoch": 1}})
