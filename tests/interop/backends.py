"""The services behind the sidecars, made of servers that nobody here wrote: aiohttp, grpcio, websockets, nginx.

They know nothing of Segue. `python backends.py KIND NAME PORT` serves one of them until it is ended.
"""

import asyncio
import os
import sys

BIG = 64 << 20

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


async def serve_aiohttp(name, port):
    from aiohttp import web

    async def hello(request):
        return web.Response(text=name, headers={"x-method": request.method, "x-path": request.path_qs})

    async def echo(request):
        body = await request.read()
        headers = {"x-length": str(len(body)), "x-framing": request.headers.get("transfer-encoding", "length")}
        return web.Response(body=body, headers=headers)

    async def headers(request):
        return web.json_response({key.lower(): value for key, value in request.headers.items()})

    async def slow(request):
        body = await request.read()
        await asyncio.sleep(float(request.query["s"]))
        return web.Response(body=body or b"slow")

    async def drip(request):
        answer = web.StreamResponse()
        await answer.prepare(request)
        for number in range(int(request.query.get("n", 1 << 30))):
            await answer.write(b"%d\n" % number)
            await asyncio.sleep(0.05)
        return answer

    async def big(request):
        answer = web.StreamResponse(headers={"content-length": str(BIG)})
        await answer.prepare(request)
        for _ in range(BIG >> 16):
            await answer.write(bytes(1 << 16))
        return answer

    async def early(request):
        """Answers before it has the request."""
        answer = web.StreamResponse()
        await answer.prepare(request)
        await answer.write(b"early ")
        received = 0
        async for part in request.content.iter_any():
            received += len(part)
        await answer.write(b"%d" % received)
        return answer

    async def hints(request):
        """Says something before it answers."""
        request.transport.write(b"HTTP/1.1 103 Early Hints\r\nlink: </style.css>\r\n\r\n")
        await asyncio.sleep(0.05)
        return web.Response(text="behind the hints")

    async def misdirected(_):
        return web.Response(status=421, text="the service's own 421")

    async def refuse(request):
        """Refuses a body that it was asked about."""
        request.transport.write(b"HTTP/1.1 417 Expectation Failed\r\ncontent-length: 2\r\nconnection: close\r\n\r\nno")
        request.transport.close()

    app = web.Application(client_max_size=1 << 30)
    app.router.add_route("*", "/", hello)
    app.router.add_post("/echo", echo)
    app.router.add_put("/echo", echo)
    app.router.add_get("/headers", headers)
    app.router.add_post("/refuse", echo, expect_handler=refuse)
    app.router.add_get("/drip", drip)
    app.router.add_get("/big", big)
    app.router.add_post("/early", early)
    app.router.add_get("/hints", hints)
    app.router.add_route("*", "/slow", slow)
    app.router.add_get("/misdirected", misdirected)

    async def asterisk(request, handler):
        if request.path == "*":
            return web.Response(text="", headers={"allow": "GET, POST", "x-path": "*"})
        return await handler(request)

    app.middlewares.append(web.middleware(asterisk))
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    await asyncio.Event().wait()


async def serve_browsed(name, port):
    """A page, what it asks for, and what it reports."""
    from aiohttp import WSMsgType, web

    reports = []

    async def page(_):
        return web.Response(text=PAGE, content_type="text/html")

    async def part(request):
        return web.Response(text=request.query_string)

    async def echo(request):
        return web.Response(body=await request.read())

    async def socket(request):
        answer = web.WebSocketResponse()
        await answer.prepare(request)
        async for message in answer:
            if message.type is WSMsgType.TEXT:
                await answer.send_str(message.data)
        return answer

    async def report(request):
        reports.append(await request.json())
        return web.Response()

    async def reported(_):
        return web.json_response(reports[-1]) if reports else web.Response(status=404)

    app = web.Application(client_max_size=1 << 30)
    app.add_routes([web.get("/p/page", page), web.get("/p/part", part), web.post("/p/echo", echo),
                    web.get("/p/socket", socket), web.post("/p/report", report), web.get("/p/report", reported)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    await asyncio.Event().wait()


async def serve_grpc(name, port):
    import grpc

    async def unary(request, context):
        metadata = dict(context.invocation_metadata())
        await context.send_initial_metadata((("x-name", name),))
        left = context.time_remaining()
        context.set_trailing_metadata((("x-left", f"{left:.3f}" if left is not None else "none"),
                                       ("x-said", metadata.get("x-say", "")), ("x-raw-bin", b"\x00\xff")))
        if delay := metadata.get("x-delay"):
            await asyncio.sleep(float(delay))
        return request

    async def fail(_, context):
        context.set_trailing_metadata((("x-why", "because"),))
        await context.abort(grpc.StatusCode.NOT_FOUND, "no such thing: ä 100%")

    async def down(request, _):
        for number in range(int(request)):
            yield b"%d" % number
            await asyncio.sleep(0.01)

    async def up(requests, _):
        total = 0
        async for request in requests:
            total += len(request)
        return b"%d" % total

    async def both(requests, _):
        async for request in requests:
            yield request

    ended = []

    async def endless(requests, _):
        """Until its client ends it or takes it back; counts that."""
        try:
            async for request in requests:
                yield request
        finally:
            ended.append(1)

    async def ends(*_):
        return b"%d" % len(ended)

    handlers = {
        "Unary": grpc.unary_unary_rpc_method_handler(unary),
        "Fail": grpc.unary_unary_rpc_method_handler(fail),
        "Down": grpc.unary_stream_rpc_method_handler(down),
        "Up": grpc.stream_unary_rpc_method_handler(up),
        "Both": grpc.stream_stream_rpc_method_handler(both),
        "Endless": grpc.stream_stream_rpc_method_handler(endless),
        "Ends": grpc.unary_unary_rpc_method_handler(ends),
    }
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", 64 << 20)])
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("foreign.Service", handlers),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await asyncio.Event().wait()


async def serve_websockets(name, port, note):
    from websockets.asyncio.server import serve
    from websockets.exceptions import ConnectionClosed

    async def echo(socket):
        await socket.send(f"{name} {socket.subprotocol or '-'}")
        try:
            async for message in socket:
                if message == "close me":
                    await socket.close(4001, "as you wish")
                    break
                if message == "ping me":
                    message = "pong" if await (await socket.ping()) is not None else "?"
                await socket.send(message)
            await socket.wait_closed()
        except ConnectionClosed:
            pass
        # What it saw of the close, for the checks to read.
        with open(note, "a", encoding="utf-8") as out:
            out.write(f"{name} {socket.close_code} {socket.close_reason}\n")

    async with serve(echo, "127.0.0.1", port, max_size=32 << 20, subprotocols=["chat"]):
        await asyncio.Event().wait()


def nginx(folder, ports):
    """nginx by HTTP/1.1 and by HTTP/2 without TLS: static files, errors, trailers, and uploads that it reads to their end."""
    root = os.path.join(folder, "www")
    os.makedirs(root, exist_ok=True)
    with open(os.path.join(root, "small.txt"), "w", encoding="ascii") as out:
        out.write("small file\n")
    with open(os.path.join(root, "large.bin"), "wb") as out:
        out.write(os.urandom(1 << 20) * 16)
    server = """
    server {{ listen 127.0.0.1:{port}{http2}; root {root}; client_max_body_size 64m; if_modified_since before;
      location / {{ add_header x-name {name}; }}
      location /upload {{ proxy_pass http://127.0.0.1:{port}/gone; }}
      location /gone {{ return 410 "gone\\n"; }}
      location /hints {{ add_header link "</a.css>; rel=preload"; return 204; }}
      location /trailers {{ gzip on; gzip_proxied any; gzip_min_length 1; gzip_types *; add_trailer x-sum 42; try_files /small.txt =404; }}
    }}"""
    servers = "".join(server.format(port=port, http2=" http2" if http2 else "", root=root, name=name)
                      for name, port, http2 in ports)
    path = os.path.join(folder, "nginx.conf")
    with open(path, "w", encoding="utf-8") as out:
        out.write(f"""daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log stderr warn;
user root;
events {{ worker_connections 512; }}
http {{ access_log off; default_type application/octet-stream; keepalive_timeout 65s;
  # A connection that it closes by HTTP/2 under load may take requests along of which nobody knows what became of them.
  keepalive_requests 1000000;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;{servers}
}}
""")
    return ["nginx", "-p", folder, "-e", "stderr", "-c", path]


if __name__ == "__main__":
    kind, name, port, *rest = sys.argv[1:]
    asyncio.run(globals()[f"serve_{kind}"](name, int(port), *rest))
