"""`drumline roles`: statements a server can read, one role a user, limits that do not add up."""

import re

import pytest

from drumline.infra.clickhouse import client as clickhouse
from drumline.infra.clickhouse.roles import ROLES, BadName, reader_grants, statements

USERS = {role: f"its-{role}" for role in ROLES}


@pytest.mark.stack
@pytest.mark.parametrize("cluster", ["", "main"])
def test_every_statement_parses(stack, cluster):
    client = clickhouse.connect(stack, reader=True)
    for statement in statements("gpu", cluster, USERS):
        assert clickhouse.rows(client, "SELECT formatQuery({sql:String}) AS sql", {"sql": statement})[0]["sql"]
        assert not cluster or re.search(r"ON CLUSTER main\b", statement), statement


def test_a_role_is_granted_to_users_only():
    """A role's settings, constraints and quota come with it: who has two, has the limits of both."""
    granted = [
        result for text in statements("gpu", "", USERS) if (result := re.match(r"GRANT drumline_(\w+) TO (.*)", text))
    ]
    assert {result[1]: result[2] for result in granted} == {role: f"`{user}`" for role, user in USERS.items()}
    for profile in (text for text in statements("gpu") if text.startswith(("CREATE SETTINGS", "CREATE QUOTA"))):
        assert re.search(r"OR REPLACE (drumline_\w+)\b.* TO \1$", profile, re.DOTALL), profile


def test_both_readers_have_the_same_grants_and_the_local_engine_has_them():
    to = [result[1] for text in statements("gpu") if (result := re.match(r"GRANT .* ON .* TO (.*)", text))]
    assert set(to) == {"drumline_writer", "drumline_analyst, drumline_page, drumline_grafana"}
    grants = reader_grants("gpu")
    assert "GRANT SHOW, SELECT ON gpu.*" in grants
    assert len(grants) == to.count("drumline_analyst, drumline_page, drumline_grafana")
    assert not any(re.search("INSERT|ALTER|CREATE|DROP", grant) for grant in grants)


def test_readers_begin_in_the_database_and_the_writer_who_creates_it_does_not():
    altered = [text for text in statements("gpu", "", USERS) if text.startswith("ALTER USER")]
    assert [text.endswith(" DEFAULT DATABASE gpu") for text in altered] == [False, True, True, True]


@pytest.mark.parametrize("name", ["x; DROP DATABASE gpu", "a b", "`x`", "x\n"])
def test_names_that_are_no_names_are_refused(name):
    with pytest.raises(BadName):
        statements("gpu", "", {"writer": name})
