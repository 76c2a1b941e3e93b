"""What a service notes of its work on keys, so that the test can see whether two pods have worked on one key at once.

Each service of the test uses this, and all pods of a service share the folder. A pod that works on a key holds a lock
of the kernel on the key's file. Children of the service inherit it: a killed pod gives it up when the last of its
processes has ended. Who does not get the lock notes an overlap. Each begin is noted with the stamps of its request;
`segue-epoch` never falls for a key, because its partition's owners follow one another.
"""

import collections
import contextlib
import fcntl
import json
import os
import threading
import time
import urllib.parse


def in_file_name(key):
    return urllib.parse.quote(key, safe="")


def append(path, record):
    """Appends a line by one write, which other processes see whole or not at all."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.write(file, (json.dumps(record) + "\n").encode())
    finally:
        os.close(file)


def read(path):
    """Returns the records of a file of lines."""
    try:
        with open(path, encoding="utf-8") as lines:
            return [json.loads(line) for line in lines]
    except FileNotFoundError:
        return []


class Work:
    def __init__(self, pod, folder):
        self.pod, self.folder = pod, os.path.join(folder, "work")
        os.makedirs(self.folder, exist_ok=True)
        self.mutex = threading.Lock()
        self.locks = {}  # by key: how many requests work on it, and the locked file
        self.partitions = collections.Counter()  # requests being worked on

    @contextlib.contextmanager
    def on(self, key, headers):
        """Notes that the pod works on the key. `headers` are those of the request. Yields the locked file."""
        epoch = int(headers.get("segue-epoch") or 0)
        partition = int(headers.get("segue-partition") or -1)
        path = os.path.join(self.folder, in_file_name(key))
        with self.mutex:
            count, lock = self.locks.get(key, (0, None))
            if lock is None:
                lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    os.pwrite(lock, f"{self.pod:<40}".encode(), 0)
                except BlockingIOError:
                    other = os.pread(lock, 40, 0).decode().strip()
                    append(f"{path}.log", {"at": time.time(), "what": "overlap", "pod": self.pod, "other": other})
            self.locks[key] = (count + 1, lock)
            self.partitions[partition] += 1
            note = {"at": time.time(), "what": "begin", "pod": self.pod, "partition": partition, "epoch": epoch}
            append(f"{path}.log", note)
        try:
            yield lock
        finally:
            with self.mutex:
                self.partitions[partition] -= 1
                count, lock = self.locks.pop(key)
                if count > 1:
                    self.locks[key] = (count - 1, lock)
                else:
                    # Closed, not unlocked: a child that has the file still holds the lock.
                    os.close(lock)

    def is_at(self, partition):
        """Returns whether requests of the partition are being worked on."""
        with self.mutex:
            return self.partitions[partition] > 0


def journals(folder):
    """Returns by key what the pods of a service have noted."""
    work = os.path.join(folder, "work")
    names = os.listdir(work) if os.path.isdir(work) else []
    names = [name.removesuffix(".log") for name in names if name.endswith(".log")]
    return {urllib.parse.unquote(name): read(os.path.join(work, f"{name}.log")) for name in names}
