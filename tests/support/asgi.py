"""Requests to an ASGI application on the caller's event loop, several at a time."""

from types import SimpleNamespace


async def get(application, path):
    """Return the `status` and `body` of the answer to GET at this path with its query."""
    name, _, query = path.partition("?")
    scope = {
        "type": "http", "method": "GET", "path": name, "raw_path": name.encode(), "query_string": query.encode(),
        "headers": [(b"host", b"localhost")], "scheme": "http", "server": ("localhost", 80), "root_path": "",
    }  # fmt: skip
    sent = []

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message):
        sent.append(message)

    await application(scope, receive, send)
    return SimpleNamespace(status=sent[0]["status"], body=b"".join(part.get("body", b"") for part in sent[1:]))
