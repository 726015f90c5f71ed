"""Write docs/reference/settings.md from the pydantic settings and their descriptions."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, get_args

from page import NOTE, REFERENCE, table, write
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from drumline.infra.config.settings import Settings
from drumline.infra.config.unknown_variables import PREFIX
from drumline.infra.config.validation import is_setting, section

PAGE = REFERENCE / "settings.md"
HEAD = f"""{NOTE.format(name="settings_page")}# Settings

Which settings are there, and what are their defaults? All are environment variables. `drumline config` prints the
values in force, without secrets. A misspelt name is an error that names the nearest setting.

Secrets are in files, which variables that end with `_FILE` name; they are read once, at the start. The same name
without `_FILE` holds the secret itself, for platforms that pass secrets on as variables only. Variables that recorded
jobs read are in [record a job](../guide/record-a-job.md).
"""


def page() -> str:
    """Return the page's text. Raises ValueError where a setting has no description."""
    return "\n".join([HEAD, *(_section(*section) for section in _sections(Settings, PREFIX))])


def _sections(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, str, dict[str, FieldInfo]]]:
    """Yield (prefix, introduction, settings) of the model and of constraint model below it."""
    plain, nested = dict[str, FieldInfo](), list[tuple[str, type[BaseModel]]]()
    for name, info in model.model_fields.items():
        if (kind := section(info)) is not None:
            nested.append((f"{prefix}{name.upper()}__", kind))
        elif is_setting(info):
            plain[name] = info
    yield prefix, inspect.cleandoc(model.__doc__ or ""), plain
    for below, kind in nested:
        yield from _sections(kind, below)


def _section(prefix: str, about: str, settings: dict[str, FieldInfo]) -> str:
    rows = []
    for name, info in settings.items():
        if not info.description:
            raise ValueError(f"{prefix}{name.upper()} has no description")
        text = info.description
        if values := get_args(info.annotation) if "Literal" in str(info.annotation) else ():
            text += ": " + ", ".join(f"`{value}`" for value in values)
        rows.append((f"`{prefix}{name.upper()}`", _default(info), text + _bounds(info)))
    return f"## {prefix}\n\n{' '.join(about.split())}\n\n{table(('variable', 'default', 'meaning'), rows)}"


def _default(info: FieldInfo) -> str:
    value: Any = info.default
    if value is PydanticUndefined or value is None or value == "":
        return "none"
    if isinstance(value, BaseModel):
        return "`{}`"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _bounds(info: FieldInfo) -> str:
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    limits = [
        f"{signs[name]} {getattr(constraint, name):g}"
        for constraint in info.metadata
        for name in signs
        if hasattr(constraint, name)
    ]
    return f" ({', '.join(limits)})" if limits else ""


if __name__ == "__main__":
    write(PAGE, page())
