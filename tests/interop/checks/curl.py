"""curl: HTTP/1.0, HTTP/1.1 and HTTP/2 by prior knowledge, in front of HTTP/1.1 and HTTP/2."""

import asyncio
import json
import os

from table import check

VERSIONS = {"HTTP/1.0": "--http1.0", "HTTP/1.1": "--http1.1", "HTTP/2": "--http2-prior-knowledge"}


class Answer:
    def __init__(self, code, out, log):
        self.code, self.log = code, log
        self.body, _, facts = out.rpartition(b"\n--- ")
        self.facts = json.loads(facts)
        self.all_facts = out.decode(errors="replace").split("\n--- ")[1:]
        self.status = self.facts["http_code"]


async def curl(cluster, path, *options, version="HTTP/1.1", stdin=b"", partition=True):
    command = ["curl", "-sv", "--max-time", "60", VERSIONS[version], "-w", "\n--- %{json}", *options]
    if partition:
        command += ["-H", "x-partition: 0"]
    command.append(f"http://127.0.0.1:{cluster.port}{path}")
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE)
    out, log = await process.communicate(stdin)
    return Answer(process.returncode, out, log.decode(errors="replace"))


def got(answer, name):
    """The value of a header of the last answer, from curl's own log."""
    lines = [line[2:].strip() for line in answer.log.splitlines() if line.startswith("< ")]
    values = [line.split(":", 1)[1].strip() for line in lines if line.lower().startswith(name + ":")]
    return values[-1] if values else None


def each(versions, servers, what):
    """Registers a check for each version before each server."""

    def register(function):
        for version in versions:
            for server, field in servers.items():
                async def run(fixture, version=version, field=field):
                    await function(getattr(fixture, field), version)

                check(version, "curl", server, what)(run)
        return function

    return register


ALL = {"aiohttp, HTTP/1.1": "aiohttp", "nginx, HTTP/1.1": "nginx1", "nginx, HTTP/2": "nginx2"}
AIOHTTP = {"aiohttp, HTTP/1.1": "aiohttp"}
NGINX = {"nginx, HTTP/1.1": "nginx1", "nginx, HTTP/2": "nginx2"}


@each(VERSIONS, ALL, "GET, again on the same connection")
async def get(cluster, version):
    path = "/" if cluster.kind == "aiohttp" else "/small.txt"
    # curl 7.88 cannot send a second request on an HTTP/2 connection by prior knowledge, to no server: once is enough here.
    more = () if version == "HTTP/2" else ("-o", "/dev/null", f"http://127.0.0.1:{cluster.port}{path}") * 2
    answer = await curl(cluster, path, *more, version=version)
    statuses = [json.JSONDecoder().raw_decode(facts)[0]["http_code"] for facts in answer.all_facts]
    assert answer.code == 0 and statuses == [200] * (1 + len(more) // 3), answer.log
    if version != "HTTP/1.0":
        assert answer.log.count("Connected to") == 1, answer.log


@each(VERSIONS, NGINX, "16 MiB arrive whole")
async def large(cluster, version):
    answer = await curl(cluster, "/large.bin", version=version)
    folder = cluster.folder
    with open(os.path.join(folder, "www", "large.bin"), "rb") as file:
        assert answer.body == file.read(), len(answer.body)


@each(VERSIONS, NGINX, "HEAD has a length and no body")
async def head(cluster, version):
    answer = await curl(cluster, "/large.bin", "-I", version=version)
    assert answer.code == 0 and answer.status == 200 and got(answer, "content-length") == str(16 << 20), answer.log


@each(VERSIONS, NGINX, "204, 206, 304, 405, 410 pass as they are")
async def statuses(cluster, version):
    for wanted, path, *options in (
        (204, "/hints"),
        (206, "/small.txt", "-H", "range: bytes=0-4"),
        (304, "/small.txt", "-H", "if-modified-since: Fri, 01 Jan 2100 00:00:00 GMT"),
        # curl 7.88 fails by HTTP/2 where nginx, asked without anybody between, refuses a body before it has arrived.
        *([] if version == "HTTP/2" else [(405, "/small.txt", "-d", "x")]),
        (410, "/gone"),
    ):
        answer = await curl(cluster, path, *options, version=version)
        assert answer.status == wanted, (answer.code, answer.facts["errormsg"], answer.log)


@each(("HTTP/1.1", "HTTP/2"), NGINX, "trailers of an answer, where HTTP/2 is spoken all the way")
async def trailers(cluster, version):
    options = ("-H", "te: trailers", "-H", "accept-encoding: gzip", "--dump-header", "/dev/stderr")
    if version == "HTTP/1.1":
        options += ("-H", "connection: te")
    answer = await curl(cluster, "/trailers", *options, version=version)
    # By HTTP/1.1 hyper writes the trailers that the head has announced, and nginx announces none.
    wanted = version == "HTTP/2" and cluster.kind == "nginx2"
    assert answer.code == 0 and answer.status == 200 and ("x-sum: 42" in answer.log) is wanted, answer.log


@each(VERSIONS, AIOHTTP, "PUT of known length")
async def put(cluster, version):
    data = os.urandom(1 << 20)
    answer = await curl(cluster, "/echo", "-X", "PUT", "-H", "Expect:", "--data-binary", "@-", version=version, stdin=data)
    assert answer.body == data and got(answer, "x-framing") == "length", answer.log


@each(("HTTP/1.1", "HTTP/2"), AIOHTTP, "upload of unknown length")
async def chunked(cluster, version):
    data = os.urandom(3 << 20)
    options = ("-T", "-", "-H", "Expect:")
    answer = await curl(cluster, "/echo", *options, version=version, stdin=data)
    assert answer.body == data and got(answer, "x-framing") == "chunked", answer.log


@check("HTTP/1.1", "curl", "aiohttp, HTTP/1.1", "Expect: 100-continue, granted by the service")
async def expect(fixture):
    data = os.urandom(2 << 20)
    answer = await curl(fixture.aiohttp, "/echo", "-H", "Expect: 100-continue", "--expect100-timeout", "20",
                        "--data-binary", "@-", stdin=data)
    assert answer.body == data and "HTTP/1.1 100 Continue" in answer.log, answer.log
    assert answer.facts["time_total"] < 15, answer.facts["time_total"]


@check("HTTP/1.1", "curl", "aiohttp, HTTP/1.1", "Expect: 100-continue, refused by the service: nothing is uploaded")
async def expect_refused(fixture):
    answer = await curl(fixture.aiohttp, "/refuse", "-H", "Expect: 100-continue", "--expect100-timeout", "20",
                        "--data-binary", "@-", stdin=os.urandom(2 << 20))
    assert answer.status == 417 and answer.facts["size_upload"] == 0 and "100 Continue" not in answer.log, answer.log


@check("HTTP/1.1", "curl", "nobody", "Expect: 100-continue while held: no 100, then 503")
async def expect_held(fixture):
    answer = await curl(fixture.nobody, "/", "-H", "Expect: 100-continue", "--expect100-timeout", "20",
                        "--data-binary", "@-", stdin=b"x" * 2048)
    assert answer.status == 503 and got(answer, "segue-reason") == "no-owner", answer.log
    assert answer.facts["size_upload"] == 0 and "100 Continue" not in answer.log, answer.log


@each(("HTTP/1.1", "HTTP/2"), AIOHTTP, "an answer that begins before the upload ends")
async def early(cluster, version):
    data = os.urandom(4 << 20)
    answer = await curl(cluster, "/early", "-H", "Expect:", "--data-binary", "@-", version=version, stdin=data)
    assert answer.body == b"early %d" % len(data), answer.body[:100]


@each(("HTTP/1.0", "HTTP/1.1"), {"aiohttp, HTTP/1.1": "direct"}, "103 before the answer, for who knows 1xx")
async def hints(cluster, version):
    answer = await curl(cluster, "/hints", version=version)
    assert answer.status == 200 and answer.body == b"behind the hints", answer.log
    told = "< HTTP/1.1 103 Early Hints" in answer.log and got(answer, "link") == "</style.css>"
    assert told == (version == "HTTP/1.1"), answer.log


@each(("HTTP/1.1", "HTTP/2"), AIOHTTP, "OPTIONS *")
async def options(cluster, version):
    answer = await curl(cluster, "/", "-X", "OPTIONS", "--request-target", "*", version=version)
    assert answer.code == 0 and got(answer, "x-path") == "*", answer.log


@each(VERSIONS, AIOHTTP, "CONNECT is refused")
async def connect(cluster, version):
    answer = await curl(cluster, "/", "-X", "CONNECT", "--request-target", "example.org:80", version=version)
    # By HTTP/2 curl sends a CONNECT with scheme and path, which is malformed (RFC 9113, 8.5).
    refused = answer.status == 400 if version != "HTTP/2" else answer.status == 400 or answer.code != 0
    assert refused, answer.log


@each(VERSIONS, AIOHTTP, "a 421 of the service's own reaches the client")
async def misdirected(cluster, version):
    answer = await curl(cluster, "/misdirected", version=version)
    assert answer.status == 421 and answer.body == b"the service's own 421", answer.log
    assert got(answer, "segue-misdirected") is None, answer.log


@each(VERSIONS, AIOHTTP, "what is said about the client and the partition")
async def stamps(cluster, version):
    answer = await curl(cluster, "/headers", "-H", "segue-epoch: 999", "-H", "x-forwarded-for: 10.1.2.3",
                        "-H", "keep-alive: x", "-H", "te: gzip", version=version)
    seen = json.loads(answer.body)
    assert seen["segue-partition"] == "0" and seen["segue-epoch"].isdigit() and seen["segue-epoch"] != "999", seen
    assert seen["x-forwarded-for"] == "127.0.0.1" and seen["segue-keyspace"] == "aiohttp", seen
    assert seen["via"] == {"HTTP/1.0": "1.0", "HTTP/1.1": "1.1", "HTTP/2": "2.0"}[version] + " segue", seen
    assert "keep-alive" not in seen and "te" not in seen, seen


@each(VERSIONS, AIOHTTP, "a head beyond the limit")
async def large_head(cluster, version):
    answer = await curl(cluster, "/", "-H", "x-large: " + "x" * 70_000, version=version)
    assert answer.status == 431 or (version == "HTTP/2" and answer.code != 0), answer.log


@each(VERSIONS, AIOHTTP, "no partition is named")
async def no_partition(cluster, version):
    answer = await curl(cluster, "/", version=version, partition=False)
    assert answer.status == 400 and got(answer, "segue-reason") == "no-partition", answer.log


@check("gRPC", "curl, HTTP/2", "nobody", "a held call whose grpc-timeout passes: DEADLINE_EXCEEDED at once")
async def deadline(fixture):
    answer = await curl(fixture.nobody, "/foreign.Service/Unary", "-H", "content-type: application/grpc", "-H", "te: trailers",
                        "-H", "grpc-timeout: 200m", "--data-binary", "@-", version="HTTP/2", stdin=bytes(5))
    assert got(answer, "grpc-status") == "4" and got(answer, "segue-reason") == "deadline", answer.log
    assert 0.2 <= answer.facts["time_total"] < 0.9, answer.facts["time_total"]


@each(VERSIONS, AIOHTTP, "cutover: a request in flight ends at its old owner")
async def slow_over_cutover(cluster, version):
    slow = asyncio.create_task(curl(cluster, "/slow?s=1", version=version))
    await asyncio.sleep(0.3)
    await cluster.move()
    answer = await slow
    assert answer.status == 200 and answer.body == b"slow", answer.log


@each(VERSIONS, AIOHTTP, "cutover: requests all the while, none fails")
async def many_over_cutover(cluster, version):
    ended = asyncio.Event()
    names = set()

    async def ask():
        while not ended.is_set():
            answer = await curl(cluster, "/", version=version)
            assert answer.status == 200, answer.log
            names.add(answer.body)

    asking = [asyncio.create_task(ask()) for _ in range(3)]
    await cluster.move()
    ended.set()
    await asyncio.gather(*asking)
    assert names == {b"a", b"b"}, names


@each(("HTTP/1.1", "HTTP/2"), AIOHTTP, "cutover: an upload under way ends at its old owner, whole")
async def upload_over_cutover(cluster, version):
    data = os.urandom(1 << 20)
    upload = asyncio.create_task(curl(cluster, "/slow?s=0.1", "-H", "Expect:", "--limit-rate", "1m", "--data-binary", "@-",
                                      version=version, stdin=data))
    await asyncio.sleep(0.3)
    await cluster.move()
    answer = await upload
    assert answer.status == 200 and answer.body == data, answer.log


# By HTTP/1.0 an answer of unknown length ends with its connection, and nothing tells an end from a cut.
@each(("HTTP/1.1", "HTTP/2"), AIOHTTP, "cutover: a stream without end is cut off at the drain's end, and seen to be")
async def stream_over_cutover(cluster, version):
    endless = asyncio.create_task(curl(cluster, "/drip", version=version))
    await asyncio.sleep(0.3)
    await cluster.move()
    answer = await endless
    # 18: closed before the end; 56: reset by the peer; 92: the HTTP/2 stream was reset.
    assert answer.status == 200 and answer.code in {"HTTP/2": (92,)}.get(version, (18, 56)), (answer.code, answer.log)
    assert answer.body.startswith(b"0\n1\n2\n"), answer.body[:20]
