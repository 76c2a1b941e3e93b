"""A client for etcd's JSON gateway: leases, transactions, snapshots and watches, as far as a pod needs them."""

import base64
import itertools
import json

import aiohttp


class StoreError(Exception):
    """etcd did not respond, or responded with an error. Whether a write took effect is unknown."""


def encode(text):
    return base64.b64encode(text.encode()).decode()


def decode(text):
    return base64.b64decode(text or "").decode(errors="replace")


def after(prefix):
    """Returns the end of the range of all keys that begin with `prefix`."""
    return prefix[:-1] + chr(ord(prefix[-1]) + 1)


class Entry:
    """A key at a revision. `value` is a dict, or None if the value is not a JSON object."""

    def __init__(self, pair):
        self.key = decode(pair["key"])
        self.create_revision, self.mod_revision = int(pair["create_revision"]), int(pair["mod_revision"])
        self.lease = int(pair.get("lease", 0))
        try:
            value = json.loads(base64.b64decode(pair.get("value", "")))
        except ValueError:
            value = None
        self.value = value if isinstance(value, dict) else None


def created_at(key, revision):
    """Compares: the key was created at this revision. 0: it does not exist."""
    return {"key": encode(key), "target": "CREATE", "result": "EQUAL", "create_revision": str(revision)}


def modified_at(key, revision):
    """Compares: the key was last written at this revision."""
    return {"key": encode(key), "target": "MOD", "result": "EQUAL", "mod_revision": str(revision)}


def put(key, value, lease=0):
    return {"request_put": {"key": encode(key), "value": encode(json.dumps(value)), "lease": str(lease)}}


def delete(key):
    return {"request_delete_range": {"key": encode(key)}}


class Etcd:
    """Calls one endpoint until it fails, then the next one."""

    def __init__(self, endpoints, timeout):
        self.endpoints = itertools.cycle(endpoints)
        self.endpoint = next(self.endpoints)
        self.timeout = timeout
        self.session = aiohttp.ClientSession()

    async def close(self):
        await self.session.close()

    async def grant(self, ttl):
        return int((await self.call("lease/grant", {"TTL": str(ttl)}))["ID"])

    async def keep_alive(self, lease):
        """Renews the lease. Returns whether it still exists."""
        answer = await self.call("lease/keepalive", {"ID": str(lease)})
        return int(answer["result"].get("TTL", 0)) > 0

    async def revoke(self, lease):
        await self.call("lease/revoke", {"ID": str(lease)})

    async def commit(self, compares, operations):
        """Commits the operations if all compares hold. Returns the transaction's revision, or None if one does not."""
        answer = await self.call("kv/txn", {"compare": compares, "success": operations})
        return int(answer["header"]["revision"]) if answer.get("succeeded") else None

    async def snapshot(self, prefix, end=None):
        """Returns the revision of the store, and the entries below `prefix`, and before `end`, at that revision."""
        answer = await self.call("kv/range", {"key": encode(prefix), "range_end": encode(end or after(prefix))})
        return int(answer["header"]["revision"]), [Entry(pair) for pair in answer.get("kvs", [])]

    async def watch(self, prefix, start, lasts, end=None):
        """Yields lists of changes from revision `start` on: pairs of a key and its entry, None for a deleted one. All changes
        of one revision arrive together. Ends after `lasts` seconds, and raises StoreError if the watch breaks."""
        create = {"key": encode(prefix), "range_end": encode(end or after(prefix)), "start_revision": str(start)}
        limit = aiohttp.ClientTimeout(total=lasts, sock_connect=self.timeout)
        try:
            async with self.session.post(self.url("watch"), json={"create_request": create}, timeout=limit) as stream:
                line = b""
                async for chunk in stream.content.iter_any():
                    *lines, line = (line + chunk).split(b"\n")
                    for text in lines:
                        yield self.changes(json.loads(text))
        except TimeoutError:
            return
        except (aiohttp.ClientError, OSError, ValueError) as error:
            self.failed()
            raise StoreError(f"watch: {error!r}") from error
        raise StoreError("watch: the stream ended")

    def changes(self, message):
        result = message.get("result", {})
        if "error" in message or result.get("canceled"):
            # Such as a compaction of the revision to start from.
            raise StoreError(f"watch: {message}")
        changes = []
        for event in result.get("events", []):
            deleted = event.get("type") == "DELETE"
            changes.append((decode(event["kv"]["key"]), None if deleted else Entry(event["kv"])))
        return changes

    async def call(self, path, body):
        limit = aiohttp.ClientTimeout(total=self.timeout)
        try:
            async with self.session.post(self.url(path), json=body, timeout=limit) as response:
                answer = await response.json(content_type=None)
        except (aiohttp.ClientError, OSError, ValueError) as error:  # a time-out is an OSError
            self.failed()
            raise StoreError(f"{path}: {error!r}") from error
        if response.status != 200 or not isinstance(answer, dict) or "error" in answer:
            self.failed()
            raise StoreError(f"{path}: {response.status} {answer}")
        return answer

    def url(self, path):
        return f"{self.endpoint}/v3/{path}"

    def failed(self):
        self.endpoint = next(self.endpoints)
