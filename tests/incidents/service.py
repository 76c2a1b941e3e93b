"""A writer behind a sidecar that can be told to misbehave: `service.py PORT [BEHAVIOUR]`.

`GET /be?slow=3` has each later request take 3 s; `?warm=hangs` or `?warm=fails` has the hook `warm` do so; `?slow=0&warm=works`
ends it. BEHAVIOUR is such a query for the beginning.
"""

import http.server
import json
import sys
import time
import urllib.parse

behaviour = {"slow": 0.0, "warm": "works"}


def be(query):
    behaviour.update((key, float(value) if key == "slow" else value) for key, value in urllib.parse.parse_qsl(query))


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        path, _, query = self.path.partition("?")
        if path == "/be":
            be(query)
            return self.respond(200, {})
        time.sleep(behaviour["slow"])
        self.respond(200, {"partition": self.headers.get("segue-partition")})

    def do_POST(self):
        self.rfile.read(int(self.headers.get("content-length", 0)))
        if self.path == "/warm" and behaviour["warm"] == "fails":
            return self.respond(500, {"reason": "disk full"})
        # A hook that answers 202 is asked again.
        is_hung = self.path == "/warm" and behaviour["warm"] == "hangs"
        self.respond(202 if is_hung else 200, {"progress": 0.1} if is_hung else {})

    def respond(self, status, body):
        body = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 128

    def handle_error(self, *_):
        """Peers that are gone are part of the test."""


be("".join(sys.argv[2:]))
Server(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
