"""nghttp2's nghttp and h2load."""

import asyncio
import re

from table import check


async def run(*command):
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT)
    out, _ = await process.communicate()
    return process.returncode, out.decode(errors="replace")


@check("HTTP/2", "nghttp", "nginx, HTTP/2", "GET with trailers, and what it depends on")
async def get(fixture):
    url = f"http://127.0.0.1:{fixture.nginx2.port}"
    code, out = await run("nghttp", "-v", "-H", "x-partition: 0", "-H", "accept-encoding: gzip", f"{url}/trailers",
                          f"{url}/small.txt", f"{url}/gone")
    assert code == 0 and out.count(":status: 200") == 2 and ":status: 410" in out and "x-sum: 42" in out, out
    assert "error_code=NO_ERROR" in out, out


@check("HTTP/2", "nghttp", "aiohttp, HTTP/1.1", "an upload with padding and a small window")
async def upload(fixture):
    url = f"http://127.0.0.1:{fixture.aiohttp.port}/echo"
    with open(f"{fixture.folder}/upload", "wb") as out:
        out.write(b"0123456789abcdef" * 65536)
    code, out = await run("nghttp", "-b", "64", "-w", "10", "-W", "10", "-s", "-H", "x-partition: 0", "-d",
                          f"{fixture.folder}/upload", "-n", url)
    assert code == 0 and "200" in out and "1M" in out.replace(" ", ""), out


async def load(cluster, path, *options):
    code, out = await run("h2load", "-H", "x-partition: 0", *options, f"http://127.0.0.1:{cluster.port}{path}")
    found = re.search(r"(\d+) total, (\d+) started, (\d+) done, (\d+) succeeded, (\d+) failed, (\d+) errored", out)
    assert code == 0 and found, out
    total, _, _, succeeded, failed, errored = map(int, found.groups())
    assert succeeded == total and failed == errored == 0, out
    found = re.search(r"status codes: (\d+) 2xx", out)
    assert found and int(found.group(1)) == total, out


@check("HTTP/2", "h2load", "nginx, HTTP/1.1", "20,000 requests, 8 connections of 32 streams")
async def over_http1(fixture):
    await load(fixture.nginx1, "/small.txt", "-n", "20000", "-c", "8", "-m", "32")


@check("HTTP/2", "h2load", "nginx, HTTP/2", "20,000 requests, 8 connections of 32 streams")
async def over_http2(fixture):
    await load(fixture.nginx2, "/small.txt", "-n", "20000", "-c", "8", "-m", "32")


@check("HTTP/1.1", "h2load", "nginx, HTTP/1.1", "20,000 requests, 32 connections")
async def http1(fixture):
    await load(fixture.nginx1, "/small.txt", "-n", "20000", "-c", "32", "--h1")


async def over_cutover(cluster, *options):
    """Keeps the load on until the partition has moved; not one request may fail."""
    moved = asyncio.Event()

    async def keep_on():
        runs = 0
        while not moved.is_set():
            await load(cluster, "/small.txt", "-n", "4000", *options)
            runs += 1
        return runs

    loading = asyncio.create_task(keep_on())
    await cluster.move()
    moved.set()
    await loading


@check("HTTP/2", "h2load", "nginx, HTTP/1.1", "cutover under load, none fails")
async def cutover_to_http1(fixture):
    await over_cutover(fixture.nginx1, "-c", "8", "-m", "16")


@check("HTTP/2", "h2load", "nginx, HTTP/2", "cutover under load, none fails")
async def cutover_to_http2(fixture):
    await over_cutover(fixture.nginx2, "-c", "8", "-m", "16")


@check("HTTP/1.1", "h2load", "nginx, HTTP/2", "cutover under load, none fails")
async def cutover_of_http1(fixture):
    await over_cutover(fixture.nginx2, "-c", "32", "--h1")
