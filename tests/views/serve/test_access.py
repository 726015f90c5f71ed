"""The page opens to who may read it: token, Host header, methods, headers, addresses."""

import asyncio
import base64

import pytest
import trustme
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from drumline.infra.config.servers import ServeSettings
from drumline.views.serve.access import AccessNotSafe, Guard, require_safe
from drumline.views.serve.web_server import CannotServe, listen, page_address

TOKEN = "a-token-of-32-characters-for-test"


def client(host="127.0.0.1", **changes):
    app = Starlette(routes=[Route("/{path:path}", lambda request: PlainTextResponse(f"seen {request.url}"))])
    settings = ServeSettings(**changes)
    return TestClient(Guard(app, settings), base_url=f"http://{host}:18080", follow_redirects=False)


def test_each_answer_has_the_headers_also_one_that_is_rejected():
    for answer in (client().get("/"), client("evil.example").get("/"), client(token=TOKEN).get("/")):
        assert "script-src 'self'" in answer.headers["content-security-policy"]
        assert "unsafe" not in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_nothing_but_reading_is_accepted(method):
    assert client().request(method, "/").status_code == 405


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "10.1.2.3", "gpu.example"])
def test_known_names_and_addresses_are_served(host):
    assert client(host, url="https://gpu.example:8443, http://other.example").get("/").status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "1.2.3"])
def test_a_name_that_an_attacker_lets_resolve_here_is_not_served(host):
    assert client(host).get("/").status_code == 421


def test_a_token_opens_by_header_password_or_address_and_then_by_a_cookie():
    browser = client(token=TOKEN)
    assert browser.get("/").status_code == 401
    assert browser.get("/?token=wrong").status_code == 401
    assert browser.get("/", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200
    assert browser.get("/", headers={"Authorization": "Bearer wrong"}).status_code == 401
    assert browser.get("/", headers={"Authorization": "Basic !"}).status_code == 401
    password = base64.b64encode(f"anyone:{TOKEN}".encode()).decode()
    assert browser.get("/", headers={"Authorization": f"Basic {password}"}).status_code == 200

    first = browser.get(f"/job/a?run=r%26b&token={TOKEN}")
    assert (first.status_code, first.headers["location"]) == (303, "/job/a?run=r%26b")
    cookie = first.headers["set-cookie"]
    assert TOKEN not in cookie
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    assert browser.get("/job/a").status_code == 200
    browser.cookies.set("drumline", "wrong")
    assert browser.get("/job/a", headers={"Cookie": "drumline=wrong"}).status_code == 401


@pytest.mark.parametrize("name", ["authorization", "cookie"])
@pytest.mark.parametrize("kind", ["Basic ", "Bearer ", "drumline=", ""])
@pytest.mark.parametrize("value", ["!", "\u00e9", "=", "YQ", "\u00ff\u00fe=" * 4, "YTo=\u00e9", "a" * 5000])
def test_a_password_of_any_bytes_is_rejected_without_a_traceback(name, kind, value):
    assert client(token=TOKEN).get("/", headers={name: f"{kind}{value}".encode("latin-1")}).status_code == 401


@pytest.mark.parametrize("path", [b"//evil.example/", b"/\\evil.example/", b"/%2Fevil.example/"])
def test_the_way_to_the_cookie_leads_to_no_other_host(path):
    scope = {"type": "http", "method": "GET", "path": path.decode(), "raw_path": path,
             "headers": [(b"host", b"localhost")], "query_string": f"token={TOKEN}".encode()}  # fmt: skip
    sent = []

    async def send(message):
        sent.append(message)

    asyncio.run(Guard(None, ServeSettings(token=TOKEN))(scope, None, send))
    location = dict(sent[0]["headers"])[b"location"].decode()
    assert location in ("/evil.example/", "/%5Cevil.example/", "/%2Fevil.example/")


def test_only_this_machine_may_read_without_a_token():
    for address in ("127.0.0.1", "::1", "localhost"):
        require_safe(ServeSettings(address=address))
    for address in ("0.0.0.0", "::", "10.0.0.1", "gpu.example"):
        with pytest.raises(AccessNotSafe, match="DRUMLINE_SERVE__TOKEN_FILE"):
            require_safe(ServeSettings(address=address))
        require_safe(ServeSettings(address=address, token=TOKEN))


def test_a_token_is_not_shown_and_may_not_be_short(tmp_path):
    path = tmp_path / "token"
    path.write_text(TOKEN + "\n")
    settings = ServeSettings(token_file=path)
    assert settings.token.get_secret_value() == TOKEN
    assert TOKEN not in repr(settings)
    path.write_text("short")
    with pytest.raises(ValueError, match="16 characters") as error:
        ServeSettings(token_file=path)
    assert "short" not in str(error.value).replace("shorter", "")


def test_an_address_in_use_names_the_setting():
    with listen(ServeSettings(port=0)) as taken:
        port = taken.getsockname()[1]
        assert page_address(ServeSettings(), port) == f"http://127.0.0.1:{port}"
        with pytest.raises(CannotServe, match=r"set DRUMLINE_SERVE__PORT .or --port. to a free one"):
            listen(ServeSettings(port=port))


def test_a_certificate_without_its_key_is_an_error(tmp_path):
    issued = trustme.CA().issue_cert("localhost")
    chain, key = tmp_path / "chain.pem", tmp_path / "key.pem"
    issued.cert_chain_pems[0].write_to_path(chain)
    issued.private_key_pem.write_to_path(key)
    assert ServeSettings(certificate=chain, key=key).certificate == chain
    with pytest.raises(ValueError, match="DRUMLINE_SERVE__CERTIFICATE"):
        ServeSettings(certificate=chain)
