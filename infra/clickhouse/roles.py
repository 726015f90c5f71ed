"""The roles of `roles.sql`: statements for a server, and grants for the local engine, which has no SQL for them."""

from __future__ import annotations

import re
from importlib import resources

ROLES = ("writer", "analyst", "grafana")
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*[*]?")


class BadName(ValueError):
    """A user, role or cluster that cannot be put into SQL as it is."""


def statements(database: str, cluster: str = "", users: dict[str, str] | None = None) -> list[str]:
    """All statements in order; `users`: role of ROLES -> the user who gets it. Raises BadName."""
    for name in (database, *filter(None, [cluster]), *(users or {}).values()):
        if not _WORD.fullmatch(name):
            raise BadName(f"{name!r} is no name of a database, cluster or user")
    text = (resources.files("drumline.infra.clickhouse") / "roles.sql").read_text()
    lines = [line for line in text.splitlines() if not line.startswith("--")]
    on = f" ON CLUSTER {cluster}" if cluster else ""
    filled = "\n".join(lines).replace("{database}", database).replace("{cluster}", on)
    made = [part.strip() for part in filled.split(";\n") if part.strip()]
    made = [part.removesuffix(";") for part in made]
    for role, user in (users or {}).items():
        made += [f"GRANT{on} drumline_{role} TO `{user}`", f"ALTER USER `{user}`{on} DEFAULT ROLE drumline_{role}"]
    return made


def reader_grants(database: str) -> list[str]:
    """What a reader may: GRANT statements without the role, as users.xml has them."""
    readers = re.compile(r"(GRANT .*) TO drumline_analyst, drumline_grafana$")
    return [found[1] for text in statements(database) if (found := readers.match(text))]
