"""Log lines: JSON if wanted, the libraries' too, and never a secret."""

import json
import logging
import subprocess
import sys

import pytest

from drumline.infra.telemetry.logging import RATE_LIMIT_S, RateLimitFilter

PROGRAM = """
import logging, structlog
from pydantic import SecretStr
from drumline.infra.telemetry.logging import configure
from drumline.infra.telemetry.secrets import hide
from drumline.infra.config.settings import Settings

settings = Settings()
configure(settings, "test")
hide("local-pass")
log = structlog.get_logger()
log.info("started", address="http://writer:hun\\"ter2@host", parts=["x", {"deep": "hun\\"ter2"}], count=3)
logging.getLogger("library").warning("refused for %s", "local-pass")
try:
    raise ValueError("bad password hun\\"ter2")
except ValueError:
    log.exception("failed")
log.info("settings", settings=settings.kafka)
"""


@pytest.fixture(params=["true", "false"])
def message(request, tmp_path):
    """(is it JSON, everything that a program with secrets logged)."""
    (tmp_path / "kafka").write_text('hun"ter2\n')
    environment = {"DRUMLINE_LOG_JSON": request.param, "DRUMLINE_KAFKA__SASL_PASSWORD_FILE": str(tmp_path / "kafka")}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True)
    return request.param == "true", done.stderr


def test_no_secret_gets_through(message):
    _, text = message
    for part in ("ter2", "local-pass"):
        assert part not in text
    assert text.count("**********") >= 4
    assert "started" in text
    assert "ValueError: bad password" in text


def test_in_json_every_line_is_an_object_with_time_level_and_program(message):
    is_json, text = message
    if not is_json:
        assert not text.startswith("{")
        return
    lines = [json.loads(line) for line in text.splitlines()]
    assert [line["level"] for line in lines] == ["info", "warning", "error", "info"]
    for line in lines:
        assert line["timestamp"].endswith("Z")
        assert line["program"] == "test"
        assert line["event"]
    assert lines[0]["count"] == 3
    assert lines[1]["logger"] == "library"


def test_equal_lines_of_a_library_are_rate_limited():
    now = 0.0
    seldom = RateLimitFilter(lambda: now)

    def write_log(text, *values, exc_info=None):
        record = logging.LogRecord("aiokafka", logging.ERROR, "", 0, text, values, exc_info)
        return record.getMessage() if seldom.filter(record) else None

    for number in range(1_000):
        now = number * 0.1
        message = write_log("cannot connect to node %s", number)
        assert (message is not None) == (now in (0.0, RATE_LIMIT_S))
        if now == RATE_LIMIT_S:
            assert message.startswith("cannot connect to node 600 (599 ")
    assert write_log("something else")
    assert write_log("cannot connect to node %s", 1, exc_info=(ValueError, ValueError(), None))
