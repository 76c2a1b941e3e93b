"""Processes that tests start and end. What they print goes to a file each, and is shown when something has failed."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile


class Process:
    # All that were started, to be ended whatever happens.
    started = []

    def __init__(self, name, folder, command):
        self.name = name
        # All lives of a process write into one log.
        self.log = os.path.join(folder, f"{name}.log")
        with open(self.log, "ab") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL)
        Process.started.append(self)

    def end(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def resident(self):
        """Bytes of memory that are its own."""
        with open(f"/proc/{self.process.pid}/status", encoding="ascii") as status:
            line = next(line for line in status if line.startswith("VmRSS"))
        return int(line.split()[1]) * 1024

    def has_said(self, text):
        with open(self.log, encoding="utf-8", errors="replace") as log:
            return text in log.read()

    def tail(self):
        with open(self.log, encoding="utf-8", errors="replace") as log:
            return "".join(log.readlines()[-40:])


def tails():
    """Returns the last lines of every process."""
    return "".join(f"--- {process.name}\n{process.tail()}" for process in {one.log: one for one in Process.started}.values())


def end_all():
    for process in Process.started:
        process.kill()


@contextlib.contextmanager
def folder_of_processes(name, keep=None, shows_tails=lambda _failed: False):
    """A folder for processes, which end with it, whatever happens. `keep`: a new folder that stays, in place of one that goes.
    `shows_tails`: says whether the last lines of the processes are printed at the end, given whether it ends by an error."""
    # As Ctrl-C does: what was started is ended on the way out.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    failed = True
    with tempfile.TemporaryDirectory(prefix=f"segue-{name}-", ignore_cleanup_errors=True) as folder:
        if keep:
            os.makedirs(keep)
        try:
            yield keep or folder
            failed = False
        finally:
            if shows_tails(failed):
                print(tails(), file=sys.stderr)
            end_all()
