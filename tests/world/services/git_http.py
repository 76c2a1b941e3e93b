"""git's own `git http-backend`, as CGI behind aiohttp: /git/REPOSITORY/… of the bare repositories in the folder."""

import asyncio
import glob
import os

from aiohttp import web

import drain_hook
import options

ARGUMENTS, WORK = options.parse()
REPOSITORIES = os.path.join(ARGUMENTS.folder, "git")
ENVIRONMENT = {
    "PATH": os.environ["PATH"], "GIT_PROJECT_ROOT": REPOSITORIES, "GIT_HTTP_EXPORT_ALL": "1", "REMOTE_USER": "world",
    "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1", "HOME": ARGUMENTS.folder,
}
# The newest epoch at which this pod has worked on a repository.
epochs = {}


def take_over(key, epoch):
    """Removes what a killed predecessor has left locked, which is safe because nobody else works on the repository."""
    if epochs.get(key) != epoch:
        epochs[key] = epoch
        for lock in glob.glob(os.path.join(REPOSITORIES, key, "**/*.lock"), recursive=True):
            os.remove(lock)


async def respond(request):
    key = request.match_info["key"]
    body = await request.read()
    environment = ENVIRONMENT | {
        "PATH_INFO": request.path.removeprefix("/git"), "QUERY_STRING": request.query_string,
        "REQUEST_METHOD": request.method, "CONTENT_TYPE": request.headers.get("content-type", ""),
        "CONTENT_LENGTH": str(len(body)), "REMOTE_ADDR": "127.0.0.1",
        "HTTP_CONTENT_ENCODING": request.headers.get("content-encoding", ""),
        "HTTP_GIT_PROTOCOL": request.headers.get("git-protocol", ""),
    }
    with WORK.on(key, request.headers) as lock:
        take_over(key, request.headers.get("segue-epoch"))
        backend = await asyncio.create_subprocess_exec(
            "git", "http-backend", env=environment, pass_fds=[lock],
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )
        output, _ = await backend.communicate(body)
    head, _, content = output.partition(b"\r\n\r\n")
    status, headers = 200, {}
    for line in head.decode().splitlines():
        name, _, value = line.partition(":")
        if name.lower() == "status":
            status = int(value.split()[0])
        else:
            headers[name] = value.strip()
    if backend.returncode:
        status = 500
    return web.Response(status=status, headers=headers, body=content)


async def serve_hook(_):
    await drain_hook.serve(ARGUMENTS.folder, ARGUMENTS.name, WORK)


app = web.Application(client_max_size=1 << 30)
app.on_startup.append(serve_hook)
app.router.add_route("*", "/git/{key}/{rest:.*}", respond)
options.serve(app, ARGUMENTS.port)
