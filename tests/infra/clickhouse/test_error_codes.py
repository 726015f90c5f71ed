"""The error codes have the names that the engine gives them."""

import pytest

from drumline.infra.clickhouse import client as clickhouse
from drumline.infra.clickhouse.error_codes import ErrorCode

pytestmark = pytest.mark.stack


def test_every_code_has_the_name_that_the_engine_gives_it(stack):
    codes = {"c": [code.value for code in ErrorCode]}
    sql = "SELECT code, errorCodeToName(code) AS name FROM (SELECT arrayJoin({c:Array(UInt32)}) AS code)"
    named = clickhouse.rows(clickhouse.connect(stack), sql, codes)
    assert {row["name"]: row["code"] for row in named} == {code.name: code.value for code in ErrorCode}
