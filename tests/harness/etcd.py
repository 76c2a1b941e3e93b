"""An etcd of one member, spoken to as any language can: JSON over HTTP."""

import base64
import json
import os

from .ports import free_port
from .processes import Process
from .waiting import until
from .web import read, read_json


class Etcd:
    def __init__(self, folder):
        client, peer = free_port(), f"http://127.0.0.1:{free_port()}"
        self.folder, self.url = folder, f"http://127.0.0.1:{client}"
        self.command = [
            "etcd", "--data-dir", os.path.join(folder, "etcd"), "--listen-client-urls", self.url, "--advertise-client-urls", self.url,
            "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}",
            "--unsafe-no-fsync", "--log-level", "warn",
        ]
        self.start()

    def start(self):
        """Starts it with what it stored before."""
        self.process = Process("etcd", self.folder, self.command)
        until(self.is_up, "etcd")

    def is_up(self):
        return "true" in read(f"{self.url}/health", timeout=1)

    def call(self, path, body):
        return read_json(f"{self.url}/v3/{path}", body)

    def grant(self, ttl):
        """Returns a lease of so many seconds."""
        return self.call("lease/grant", {"TTL": ttl})["ID"]

    def put(self, values, lease=0):
        """Puts texts by their keys, in one transaction. Returns its revision."""
        puts = [{"requestPut": {"key": encode(key), "value": encode(value), "lease": lease}} for key, value in values.items()]
        return int(self.call("kv/txn", {"success": puts})["header"]["revision"])

    def put_records(self, root, records, lease=0):
        """Puts the records of a keyspace, by their keys below its root."""
        return self.put({root + key: json.dumps(record) for key, record in records.items()}, lease)

    def delete(self, key):
        self.call("kv/deleterange", {"key": encode(key)})

    def alarm(self, action, kind, member="0"):
        self.call("maintenance/alarm", {"action": action, "alarm": kind, "memberID": member})


def encode(text):
    return base64.b64encode(text.encode()).decode()
