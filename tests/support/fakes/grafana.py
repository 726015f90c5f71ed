"""A small HTTP server with the part of Grafana's interface that drumline uses.

It checks requests, not that Grafana would accept them.
"""

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TOKEN = "glsa_fake"
KINDS = {
    r"/api/folders/([\w-]+)$": "folders",
    r"/api/datasources/uid/([\w-]+)$": "sources",
    r"/api/dashboards/uid/([\w-]+)$": "dashboards",
    r"/api/v1/provisioning/folder/drumline/rule-groups/([\w-]+)$": "groups",
    r"/api/v1/provisioning/contact-points/([\w-]+)$": "points",
    r"/api/v1/provisioning/templates/([\w-]+)$": "templates",
}


class FakeGrafana:
    """`things`: kind -> name -> what it has. `writes`: (method, path) of all that changed something. `status`: the only
    answer."""

    def __init__(self):
        self.things = {kind: {} for kind in (*KINDS.values(), "policies")}
        self.writes, self.status = [], None
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self, status, body):
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def rejected(self):
                if self.headers["Authorization"] != f"Bearer {TOKEN}":
                    self.answer(401, {"message": "Invalid API key"})
                elif fake.status:
                    self.answer(fake.status, {"message": "no"})
                else:
                    return False
                return True

            def do_GET(self):
                if self.rejected():
                    return
                if self.path.endswith("/contact-points"):
                    return self.answer(200, [fake.hidden(p) for p in fake.things["points"].values()])
                if self.path.endswith("/templates"):
                    return self.answer(200, list(fake.things["templates"].values()))
                if self.path.endswith("/policies"):
                    return self.answer(200, fake.things["policies"])
                kind, name = fake.place(self.path)
                current = fake.things[kind].get(name)
                return self.answer(200, current) if current else self.answer(404, {"message": "not found"})

            def write(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if self.rejected():
                    return
                fake.writes.append((self.command, self.path))
                fake.take(self.path, body)
                self.answer(200, {"status": "success"})

            def do_POST(self):
                self.write()

            def do_PUT(self):
                self.write()

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @staticmethod
    def place(path):
        return next((kind, match[1]) for pattern, kind in KINDS.items() if (match := re.match(pattern, path)))

    @staticmethod
    def hidden(point):
        secret = "integrationKey" if point["type"] == "pagerduty" else "url"
        return {**point, "settings": {**point["settings"], secret: "[REDACTED]"}}

    def take(self, path, body):
        """Keep what is sent as Grafana would: dashboards get a version, rules their defaults."""
        if path == "/api/folders":
            self.things["folders"][body["uid"]] = body
        elif path == "/api/datasources":
            self.things["sources"][body["uid"]] = {k: v for k, v in body.items() if k != "secureJsonData"}
        elif path == "/api/dashboards/db":
            board = {**body["dashboard"], "id": 7, "version": len(self.writes)}
            self.things["dashboards"][board["uid"]] = {"dashboard": board, "meta": {"folderUid": body["folderUid"]}}
        elif path.endswith("/contact-points"):
            self.things["points"][body["uid"]] = body
        elif path.endswith("/policies"):
            self.things["policies"] = body
        else:
            kind, name = self.place(path)
            rules = [{**{k: v for k, v in r.items() if v != "0s"}, "id": 1} for r in body.get("rules", ())]
            named = {"name": name, "provenance": "api"} if kind == "templates" else {}
            self.things[kind][name] = {**named, **body, **({"rules": rules} if rules else {})}

    def close(self):
        self.server.shutdown()
        self.server.server_close()
