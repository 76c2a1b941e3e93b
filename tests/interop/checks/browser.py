"""Chromium by TLS in front of a service by HTTP/1.1. It chooses HTTP/2 by ALPN, and HTTP/1.1 for a WebSocket."""

import asyncio
import json
import os
import ssl
import urllib.error
import urllib.request

from processes import Process, until
from table import check

# What the page does once it is loaded; it reports to its service.
PAGE = """<!doctype html><title>foreign</title><script>
const text = async (path, options) => { const got = await fetch(path, options); return [got.status, await got.text()]; };
const socket = () => new Promise((resolve, reject) => {
  const socket = new WebSocket(`wss://${location.host}/p/socket`);
  socket.onopen = () => socket.send('over a socket');
  socket.onmessage = (event) => { resolve(event.data); socket.close(); };
  socket.onerror = () => reject('the socket has failed');
});
(async () => {
  const report = { page: performance.getEntriesByType('navigation')[0].nextHopProtocol };
  try {
    const parts = await Promise.all([...Array(20).keys()].map((part) => text(`/p/part?${part}`)));
    report.parts = parts.every(([status, body], part) => status === 200 && body === `${part}`);
    const body = 'x'.repeat(1 << 20);
    const [status, echoed] = await text('/p/echo', { method: 'POST', body });
    report.post = status === 200 && echoed === body;
    report.socket = await socket();
  } catch (error) { report.error = `${error}`; }
  await fetch('/p/report', { method: 'POST', body: JSON.stringify(report) });
})();
</script>"""


def reported(cluster, authority):
    trusted = ssl.create_default_context(cafile=authority.path("ca.pem"))
    try:
        with urllib.request.urlopen(f"https://127.0.0.1:{cluster.port}/p/report", timeout=5, context=trusted) as answer:
            return json.load(answer)
    except urllib.error.HTTPError:
        return None


@check("HTTP/2 by TLS", "Chromium", "aiohttp, HTTP/1.1", "a page with 20 parts, a POST of 1 MiB, a WebSocket")
async def page(fixture):
    home = fixture.authority.home("browser")
    flags = ("headless=new", "no-sandbox", "disable-dev-shm-usage", "disable-background-networking", "no-first-run",
             "disable-component-update", f"user-data-dir={os.path.join(home, 'chromium')}")
    browser = Process("chromium", fixture.folder, [
        "env", f"HOME={home}", "chromium", *(f"--{flag}" for flag in flags), "--remote-debugging-port=0",
        f"https://127.0.0.1:{fixture.browsed.port}/p/page"])
    try:
        report = await until(lambda: reported(fixture.browsed, fixture.authority), "the page to report")
    finally:
        browser.end()
        await asyncio.to_thread(browser.process.wait)
    assert report == {"page": "h2", "parts": True, "post": True, "socket": "over a socket"}, report
