"""Notes in SQLite behind ASGI, by uvicorn alone: `POST /notes/KEY` adds a note and answers its position, `GET
/notes/KEY` has all of them. Each key has a database of its own, in the folder that all pods share.

A pod keeps its databases open and locked as long as it owns them, as a service does that wants to read from memory. The
hook `drain` closes them before the next owner opens them. A database that a pod could not lock is an error of its
request, so a second writer would be noticed.
"""

import contextlib
import json
import os
import sqlite3

import uvicorn

import drain_hook
import options
from work import in_file_name

ARGUMENTS, WORK = options.parse()
FOLDER = os.path.join(ARGUMENTS.folder, "databases")
os.makedirs(FOLDER, exist_ok=True)
TABLE = "CREATE TABLE IF NOT EXISTS notes (position INTEGER PRIMARY KEY, name TEXT UNIQUE, epoch INTEGER, pod TEXT)"
opened = {}  # by key: the partition and the database


def database(key, partition):
    """Returns the key's database, locked by this process."""
    if key not in opened:
        connection = sqlite3.connect(os.path.join(FOLDER, in_file_name(key)), timeout=0, isolation_level=None)
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(TABLE)
        opened[key] = (partition, connection)
    return opened[key][1]


async def close(partition):
    """Closes the databases of a partition that has drained."""
    for key in [key for key, (of, _) in opened.items() if of == partition]:
        opened.pop(key)[1].close()


def notes(connection):
    rows = connection.execute("SELECT position, name, epoch, pod FROM notes ORDER BY position")
    return [dict(zip(("position", "name", "epoch", "pod"), row)) for row in rows]


async def body_of(receive):
    body, goes_on = b"", True
    while goes_on:
        part = await receive()
        body, goes_on = body + part.get("body", b""), part.get("more_body", False)
    return body.decode()


async def respond(scope, receive, send):
    headers = {name.decode(): value.decode() for name, value in scope["headers"]}
    key, name = scope["path"].removeprefix("/notes/"), await body_of(receive)
    with WORK.on(key, headers):
        try:
            connection = database(key, int(headers["segue-partition"]))
            if scope["method"] == "POST":
                values = (name, int(headers["segue-epoch"]), ARGUMENTS.name)
                added = connection.execute("INSERT INTO notes (name, epoch, pod) VALUES (?, ?, ?)", values)
                status, answer = 200, {"position": added.lastrowid}
            else:
                status, answer = 200, notes(connection)
        except sqlite3.Error as error:
            status, answer = 500, {"error": str(error)}
    head = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": json.dumps(answer).encode()})


async def live(receive, send):
    """Serves the hook for as long as the application lives."""
    async with contextlib.AsyncExitStack() as stack:
        await receive()
        hook = await drain_hook.serve(ARGUMENTS.folder, ARGUMENTS.name, WORK, close)
        stack.push_async_callback(hook.cleanup)
        await send({"type": "lifespan.startup.complete"})
        await receive()
    await send({"type": "lifespan.shutdown.complete"})


async def app(scope, receive, send):
    await (live(receive, send) if scope["type"] == "lifespan" else respond(scope, receive, send))


uvicorn.run(app, host="127.0.0.1", port=ARGUMENTS.port, log_level="warning", lifespan="on", timeout_graceful_shutdown=5)
