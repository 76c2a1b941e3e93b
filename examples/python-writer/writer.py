"""The service of the pods in Python: keeps the last value of each key, in a log that all pods of the keyspace share.

It is `examples/writer.rs` in Python, with the same log. Each accepted write is appended without a comparison of epochs, so the log
shows every mistake. A pod adds a membership, which takes part in handoffs and decides which requests are accepted.
"""

import argparse
import asyncio
import fcntl
import json
import logging
import os
import pathlib
import random
import time

log = logging.getLogger("pod")


class Log:
    """A file for each partition, a JSON object on each line, locked while it is written or read."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)

    async def append(self, partition, record):
        """Appends a record. Returns the offset after it."""
        with open(self.path(partition), "ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            record["appended_at"] = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
            # A single write: a process that dies leaves the whole record or nothing.
            os.write(file.fileno(), json.dumps(record).encode() + b"\n")
            return os.fstat(file.fileno()).st_size

    async def read(self, partition, begin):
        """Returns the records from this offset on, and the offset after them."""
        try:
            file = open(self.path(partition), "rb")
        except FileNotFoundError:
            return [], 0
        with file:
            fcntl.flock(file, fcntl.LOCK_SH)
            file.seek(begin)
            data = file.read()
        return [json.loads(line) for line in data.splitlines()], begin + len(data)

    def path(self, partition):
        return self.folder / f"{partition}.log"


class State:
    """The state of a partition."""

    def __init__(self):
        self.entries = {}  # key: (the highest sequence number, the last value)
        self.read_to = 0

    def apply(self, records, read_to):
        for record in records:
            self.put(record)
        self.read_to = max(self.read_to, read_to)

    def put(self, record):
        highest, _ = self.entries.get(record["key"], (0, ""))
        self.entries[record["key"]] = (max(highest, record["sequence"]), record["value"])


class Writer:
    """The service: its state, and the callbacks of a handoff."""

    state = State

    def __init__(self, shared_log, warm_time):
        self.log, self.warm_time = shared_log, warm_time
        self.states = {}

    async def warm(self, part):
        state = self.state()
        state.apply(*await self.log.read(part.partition, 0))
        await asyncio.sleep(self.warm_time)
        self.states[part.partition] = state

    async def sync(self, part):
        state = self.states[part.partition]
        state.apply(*await self.log.read(part.partition, state.read_to))

    async def enter(self, partition, epoch):
        """Returns the state for a request."""
        return self.states[partition]

    async def append(self, state, partition, record):
        """Writes the record of a request."""
        state.apply([record], await self.log.append(partition, record))

    async def drain(self, part):
        """Nothing outlives a request here."""

    async def release(self, part):
        self.states.pop(part.partition, None)


class CheckpointingWriter(Writer):
    """Starts from the newest checkpoint instead of the beginning of the log. A checkpoint is a file beside the logs."""

    async def warm(self, part):
        state = await self.saved(part.partition, part.checkpoint)
        state.apply(*await self.log.read(part.partition, state.read_to))
        await asyncio.sleep(self.warm_time)
        self.states[part.partition] = state

    async def saved(self, partition, checkpoint):
        """Returns the state of this checkpoint, an empty one without a checkpoint."""
        state = self.state()
        if checkpoint:
            saved = json.loads((self.log.folder / checkpoint).read_text())
            state.entries, state.read_to = {key: tuple(entry) for key, entry in saved["entries"].items()}, saved["read_to"]
        return state

    async def checkpoint(self, part):
        state, name = self.states[part.partition], f"{part.partition}-{part.epoch}.checkpoint"
        # What this pod has appended is in `entries`, and applied again from `read_to` on.
        saved = json.dumps({"entries": state.entries, "read_to": state.read_to})
        path = self.log.folder / f"{name}.new"
        path.write_text(saved)
        os.replace(path, self.log.folder / name)
        return name


class Http:
    """HTTP/1.1: PUT and GET of /keys/{key}, as a router sends them."""

    def __init__(self, membership, writer, service_time):
        self.membership, self.writer, self.service_time = membership, writer, service_time

    async def serve(self, reader, stream):
        try:
            while (head := await self.head(reader)) is not None:
                method, path, headers = head
                body = await self.body(reader, stream, headers)
                status, extra, answer = await self.handle(method, path, headers, body)
                lines = [f"HTTP/1.1 {status}", f"content-length: {len(answer)}"]
                lines += [f"{name}: {value}" for name, value in extra.items()]
                stream.write("\r\n".join(lines).encode() + b"\r\n\r\n" + answer)
                await stream.drain()
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # neither a router that closes a connection nor the end of this process is an error
        finally:
            stream.close()

    async def head(self, reader):
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return None
        if head.startswith(b"PRI * HTTP/2"):
            log.error("a router speaks HTTP/2: set [router.upstream] protocol = \"http1\"")
            return None
        first, *lines = head[:-4].decode("latin-1").split("\r\n")
        method, path, _ = first.split(" ")
        headers = {}
        for line in lines:
            name, _, value = line.partition(":")
            name, value = name.lower(), value.strip()
            # One that comes twice is a list, which is no number.
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        return method, path, headers

    async def body(self, reader, stream, headers):
        if headers.get("expect", "").lower() == "100-continue":
            stream.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if headers.get("transfer-encoding", "").lower() != "chunked":
            return await reader.readexactly(int(headers.get("content-length", 0)))
        chunks = []
        while size := int((await reader.readline()).split(b";")[0], 16):
            chunks.append(await reader.readexactly(size))
            await reader.readexactly(2)
        while await reader.readline() not in (b"\r\n", b""):
            pass
        return b"".join(chunks)

    async def handle(self, method, path, headers, body):
        async with self.membership.admit(headers.items()) as owned:
            if owned is None:
                # The promise that nothing was done: the router asks again.
                return "421 Misdirected Request", {"segue-misdirected": "1"}, b""
            try:
                return await self.work(method, path, headers, body, owned)
            except Exception as error:  # noqa: BLE001: whatever fails, the router gets a response
                log.warning("%s %s failed: %r", method, path, error)
                return "500 Internal Server Error", {}, b"the request failed\n"

    async def work(self, method, path, headers, body, owned):
        accepted_at = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        state, key = await self.writer.enter(owned.partition, owned.epoch), path.removeprefix("/keys/")
        await self.pause()
        value = b""
        if method == "GET":
            sequence, text = state.entries.get(key, (0, ""))
            value = text.encode()
        else:
            lease_ended = "500 Internal Server Error", {"segue-reason": "lease-lost"}, b"the lease ended\n"
            if not owned.may_write():
                return lease_ended
            sequence = int(headers["x-sequence"])
            record = {
                "partition": owned.partition,
                "epoch": owned.epoch,
                "pod": self.membership.name,
                "incarnation": owned.incarnation,
                "request": int(headers["x-request-id"]),
                "key": key,
                "sequence": sequence,
                "accepted_at": accepted_at,
                "value": body.decode(),
            }
            await self.writer.append(state, owned.partition, record)
            if not owned.may_write():
                # The next owner may not have seen the record.
                return lease_ended
            await self.pause()
        return "200 OK", {"x-writer": self.membership.name, "x-epoch": owned.epoch, "x-sequence": sequence}, value

    async def pause(self):
        await asyncio.sleep(self.service_time / 2 * random.uniform(0.5, 1.5))


def parser(description):
    """Returns the arguments that all pods have."""
    arguments = argparse.ArgumentParser(description=description)
    arguments.add_argument("--keyspace", default="default")
    arguments.add_argument("--name", required=True, help="unique in the keyspace")
    arguments.add_argument("--listen", required=True, help="where routers reach it, host:port")
    arguments.add_argument("--lease-ttl", type=int, default=15, help="whole seconds")
    arguments.add_argument("--warm-time", type=float, default=0.0, help="seconds in addition to reading the log")
    arguments.add_argument("--service-time", type=float, default=0.0, help="seconds for each request")
    return arguments


async def serve(membership, writer, arguments):
    """Serves requests until a signal arrives, then hands all partitions over. Returns the exit code."""
    host, port = arguments.listen.rsplit(":", 1)
    http = Http(membership, writer, arguments.service_time)
    server = await asyncio.start_server(http.serve, host, int(port))
    is_empty = await membership.take_part(within=60)
    server.close()
    return 0 if is_empty else 1
