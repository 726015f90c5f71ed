"""A schema registry for tests: a small HTTP server with the part of Confluent's REST API that drumline uses."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class FakeRegistry:
    """POST /subjects/S/versions, POST /subjects/S, GET /schemas/ids/N. `status`: the only answer. `go` makes it leave,
    `come` return to the same port with what it had."""

    def __init__(self):
        self.schemas, self.calls, self.status = {}, [], None
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self, status, body):
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def do_POST(self):
                text = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["schema"]
                path = self.path.split("?")[0].split("/")
                fake.calls.append(("POST", path[2], self.headers.get("Authorization")))
                known = next((n for n, (name, old) in fake.schemas.items() if (name, old) == (path[2], text)), None)
                if fake.status:
                    return self.answer(fake.status, {"error_code": fake.status, "message": "no"})
                if known is None and path[-1] != "versions":
                    return self.answer(404, {"error_code": 40403, "message": "Schema not found"})
                if known is None:
                    fake.schemas[known := 100 + len(fake.schemas)] = (path[2], text)
                return self.answer(200, {"subject": path[2], "id": known, "version": 1, "schema": text})

            def do_GET(self):
                number = int(self.path.split("?")[0].split("/")[-1])
                fake.calls.append(("GET", number, self.headers.get("Authorization")))
                if fake.status or number not in fake.schemas:
                    code = fake.status or 404
                    return self.answer(code, {"error_code": 40403, "message": "Schema not found"})
                return self.answer(200, {"schema": fake.schemas[number][1]})

            def log_message(self, *_):
                pass

        self._handler, self._port = Handler, 0
        self.come()
        self.url = f"http://127.0.0.1:{self._port}"

    def come(self):
        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), self._handler)
        self._port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def go(self):
        self._server.shutdown()
        self._server.server_close()
