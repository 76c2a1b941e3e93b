"""Free ports on loopback for processes that a test or a comparison starts. `tests/support/ports.rs` says why they are what they are."""

import errno
import fcntl
import os
import random
import socket
import tempfile

# The locked files that keep this run's ports its own, as tests/support/ports.rs does for the tests in Rust.
KEPT = []


def free_port():
    """Returns a port below those of outgoing connections, on which no process listens and which is given out once."""
    folder = os.path.join(tempfile.gettempdir(), "segue-test-ports")
    os.makedirs(folder, exist_ok=True)
    while True:
        port = random.randrange(10_000, 32_768)
        lock = open(os.path.join(folder, str(port)), "w", encoding="utf-8")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            continue
        with socket.socket() as tried:
            if tried.connect_ex(("127.0.0.1", port)) == errno.ECONNREFUSED:
                KEPT.append(lock)
                return port
        lock.close()
