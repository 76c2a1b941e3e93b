"""Radicale, by its own server, below /dav/: CalDAV with its own storage of files. Each user is a key."""

import contextlib
import os
import signal
import socket

import radicale.app
import radicale.config
import radicale.server

import options

ARGUMENTS, WORK = options.parse()
PREFIX = "/dav"


class Application(radicale.app.Application):
    """Radicale's application, which also notes its work."""

    def __call__(self, environ, start_response):
        path = environ["PATH_INFO"].removeprefix(PREFIX)
        environ = environ | {"SCRIPT_NAME": PREFIX, "PATH_INFO": path}
        headers = {f"segue-{name}": environ.get(f"HTTP_SEGUE_{name.upper()}") for name in ("epoch", "partition")}
        user = path.split("/")[1]
        # A request of no user, such as the search for one's calendars, goes to any pod.
        with WORK.on(user, headers) if user else contextlib.nullcontext():
            return super().__call__(environ, start_response)


radicale.server.Application = Application
configuration = radicale.config.load()
configuration.update({
    "server": {"hosts": f"127.0.0.1:{ARGUMENTS.port}", "max_connections": "200"},
    # Anybody is whom he says.
    "auth": {"type": "none"},
    "storage": {"filesystem_folder": os.path.join(ARGUMENTS.folder, "radicale")},
    "logging": {"level": "warning"},
}, "the test")
ours, theirs = socket.socketpair()
signal.signal(signal.SIGTERM, lambda *_: ours.send(b"end"))
radicale.server.serve(configuration, theirs)
