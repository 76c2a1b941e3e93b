"""The checks, by client. Importing a module registers its own."""

from . import browser, curl, grpc_calls, http2_front, http2_load, keep_alive, websocket  # noqa: F401
