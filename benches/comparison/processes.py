"""Processes of the comparison: starting, stopping, and the CPU time that they have used."""

import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

STARTED = []


def stop_all():
    """Stops every process that was started, the last one first."""
    for running in reversed(STARTED):
        running.stop()


class Running:
    """A process and its children, which listens on `port` once this is made."""

    def __init__(self, name, port, command, **options):
        self.name, self.port = name, port
        options.setdefault("stdout", subprocess.DEVNULL)
        self.process = subprocess.Popen(list(map(str, command)), **options)
        STARTED.append(self)
        self._wait()

    def _wait(self):
        for _ in range(400):
            if self.process.poll() is not None:
                sys.exit(f"peers: {self.name} has ended: see its output above")
            try:
                socket.create_connection(("127.0.0.1", self.port), 0.2).close()
                return
            except OSError:
                time.sleep(0.025)
        sys.exit(f"peers: {self.name} does not listen on port {self.port} after 10 s")

    def cpu(self):
        """CPU time so far: in microseconds, and in clock ticks of user code and of the kernel."""
        user = system = ran = 0
        pid = self.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for process in [pid, *map(int, children)]:
            fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
            user, system = user + int(fields[11]), system + int(fields[12])
            for thread in Path(f"/proc/{process}/task").iterdir():
                ran += int((thread / "schedstat").read_text().split()[0])
        return ran / 1e3, user, system

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
