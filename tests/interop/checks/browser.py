"""Chromium by TLS in front of a service by HTTP/1.1. It chooses HTTP/2 by ALPN, and HTTP/1.1 for a WebSocket."""

import asyncio
import os
import ssl

from harness.processes import Process
from harness.waiting import eventually
from harness.web import read_json
from table import check


def reported(cluster, authority):
    trusted = ssl.create_default_context(cafile=authority.path("ca.pem"))
    return read_json(f"https://127.0.0.1:{cluster.port}/p/report", timeout=5, context=trusted)


@check("HTTP/2 by TLS", "Chromium", "aiohttp, HTTP/1.1", "a page with 20 parts, a POST of 1 MiB, a WebSocket")
async def page(fixture):
    home = fixture.authority.home("browser")
    flags = ("headless=new", "no-sandbox", "disable-dev-shm-usage", "disable-background-networking", "no-first-run",
             "disable-component-update", f"user-data-dir={os.path.join(home, 'chromium')}")
    browser = Process("chromium", fixture.folder, [
        "env", f"HOME={home}", "chromium", *(f"--{flag}" for flag in flags), "--remote-debugging-port=0",
        f"https://127.0.0.1:{fixture.browsed.port}/p/page"])
    try:
        report = await eventually(lambda: reported(fixture.browsed, fixture.authority), "the page to report")
    finally:
        browser.end()
        await asyncio.to_thread(browser.process.wait)
    assert report == {"page": "h2", "parts": True, "post": True, "socket": "over a socket"}, report
