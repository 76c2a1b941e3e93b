"""The program `segue`: its processes with their configurations, its commands, and its demo.

A configuration is a dictionary of its sections, which may have sections of their own, and lists of them.
"""

import json
import os
import subprocess

from .ports import free_port
from .processes import Process
from .waiting import until
from .web import is_up

# Commands take their keyspace from what a test says, and not from the variables of whoever runs it.
for variable in ("SEGUE_CONFIG", "SEGUE_SERVER", "SEGUE_KEYSPACE", "SEGUE_TOKEN_FILE"):
    os.environ.pop(variable, None)

# A coordinator whose moves are quick.
QUICK = {"settle": "50ms", "min_interval": "100ms", "cool_down": "0s"}
# A port that nobody has to know.
ANYWHERE = "127.0.0.1:0"


def at(port):
    return f"127.0.0.1:{port}"


def toml(value):
    """Returns a value as TOML has it in a line."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {toml(item)}" for key, item in value.items()) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


class Segue:
    """The program in a folder, where its processes use one etcd and, if it is given, one keyspace."""

    def __init__(self, program, folder, etcd, keyspace=None):
        self.program, self.folder, self.etcd = program, folder, etcd
        self.own = {"keyspace": keyspace} if keyspace else {}

    def configure(self, name, sections):
        """Writes a configuration file. Returns where it is."""
        path = os.path.join(self.folder, f"{name}.toml")
        store = {"store": {"endpoints": [self.etcd.url]}} if self.etcd else {}
        with open(path, "w", encoding="utf-8") as out:
            out.writelines(f"{key} = {toml(value)}\n" for key, value in (self.own | store | sections).items())
        return path

    def run(self, name, sections):
        """Starts a process of these roles."""
        return self.start(name, self.configure(name, sections))

    def start(self, name, config):
        return Process(name, self.folder, [self.program, "run", "--config", config])

    def operate(self, *words):
        """Runs a command of operators to its end."""
        keyspace = ["--keyspace", self.own["keyspace"]] if "keyspace" in self.own else []
        command = [self.program, *words, "--etcd", self.etcd.url, *keyspace]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)

    def status(self):
        """Returns what `segue status` says, or nothing while it fails."""
        output = self.operate("status", "--json").stdout
        return json.loads(output) if output else {}


class Demo:
    """`segue demo` with an admin endpoint."""

    def __init__(self, program, folder, *arguments):
        self.folder, self.port = folder, free_port()
        self.command = [program, "demo", "--json", "--admin", at(self.port), "--seed", "7", *arguments]
        self.start()

    def start(self):
        self.process = Process("demo", self.folder, self.command)
        until(lambda: is_up(f"http://{at(self.port)}/ready"), "the demo")
