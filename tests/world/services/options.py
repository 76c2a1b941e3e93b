"""The options of all services, and how those on aiohttp are served."""

import argparse

from aiohttp import web

from work import Work


def parse():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--name", required=True, help="name of the pod")
    arguments.add_argument("--port", type=int, required=True)
    arguments.add_argument("--folder", required=True, help="the state, which all pods share")
    arguments.add_argument("--takes", type=float, default=0.02, help="longest time in seconds that a record takes")
    arguments.add_argument("--acknowledge-early", action="store_true", help="sabotage: respond a second before storing")
    arguments = arguments.parse_args()
    return arguments, Work(arguments.name, arguments.folder)


def serve(app, port):
    """Serves until SIGTERM."""
    web.run_app(app, host="127.0.0.1", port=port, access_log=None, print=None, shutdown_timeout=5)
