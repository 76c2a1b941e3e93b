"""Requests by HTTP to endpoints of processes."""

import json
import socket
import urllib.error
import urllib.request


def read(url, body=None, timeout=30, context=None, method=None, headers=None):
    """Returns the body of the response. `body`, an object, is sent as JSON."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, headers or {}, method=method)
    with urllib.request.urlopen(request, timeout=timeout, context=context) as response:
        return response.read().decode()


def read_json(url, body=None, **options):
    return json.loads(read(url, body, **options))


def status_of(url, timeout=10):
    try:
        with urllib.request.urlopen(url, timeout=timeout) as response:
            return response.status
    except urllib.error.HTTPError as error:
        return error.code


def is_up(url, timeout=10):
    """Returns whether a response says so."""
    try:
        return status_of(url, timeout) < 400
    except OSError:
        return False


def accepts(port):
    """Returns whether a process accepts connections on this port of loopback."""
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


def metrics(url, series):
    """Returns the sum of the series that begin so on a page of metrics."""
    return sum(float(line.split()[-1]) for line in read(url).splitlines() if line.startswith(series))
