"""The roles of `roles.sql`: statements for a server, and grants for the local engine, which has no such SQL."""

from __future__ import annotations

import re
from importlib import resources

ROLES = ("writer", "analyst", "page", "grafana")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*[*]?")


class BadName(ValueError):
    """A user, role or cluster that cannot be put into SQL as it is."""


def check_name(name: str) -> None:
    """Check a name of a database, cluster or user that becomes part of SQL. Raises BadName."""
    if not _NAME.fullmatch(name):
        raise BadName(f"{name!r} is no name of a database, cluster or user")


def statements(database: str, cluster: str = "", users: dict[str, str] | None = None) -> list[str]:
    """Return all statements in order; `users`: role of ROLES -> user that gets it. Raises BadName."""
    for name in (database, *filter(None, [cluster]), *(users or {}).values()):
        check_name(name)
    text = (resources.files("drumline.infra.clickhouse") / "roles.sql").read_text()
    lines = [line for line in text.splitlines() if not line.startswith("--")]
    on = f" ON CLUSTER {cluster}" if cluster else ""
    filled = "\n".join(lines).replace("{database}", database).replace("{cluster}", on)
    result = [part.strip() for part in filled.split(";\n") if part.strip()]
    result = [part.removesuffix(";") for part in result]
    for role, user in (users or {}).items():
        # The writer creates the database, and a user cannot log in while its default database is missing.
        default = "" if role == "writer" else f" DEFAULT DATABASE {database}"
        result += [
            f"GRANT{on} drumline_{role} TO `{user}`",
            f"ALTER USER `{user}`{on} DEFAULT ROLE drumline_{role}{default}",
        ]
    return result


def reader_grants(database: str) -> list[str]:
    """Return the reader's GRANT statements without the role, as in users.xml."""
    readers = re.compile(r"(GRANT .*) TO drumline_analyst, drumline_page, drumline_grafana$")
    return [match[1] for text in statements(database) if (match := readers.match(text))]
