"""Detection of environment variables that begin with DRUMLINE_ and are no settings: misspelt, or foreign.

A misspelt setting must not seem to be in force, least of all one that encrypts. But other software sets such names too:
Kubernetes for each Service whose name begins with "drumline", and other versions of drumline. So only a name that can
be nothing but a setting is an error; the others are warnings.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from drumline.infra.config.validation import has_variable, is_setting, section

PREFIX = "DRUMLINE_"
#: Variables that recorded jobs read; they are no settings.
JOBS = (
    "DRUMLINE_JOB", "DRUMLINE_RUN", "DRUMLINE_LABELS", "DRUMLINE_QUIET", "DRUMLINE_ATTACH", "DRUMLINE_LATE",
    "DRUMLINE_MINTED_RUN", "DRUMLINE_PYTHON", "DRUMLINE_PACKAGES",
    "DRUMLINE_COLLECT__POLICY", "DRUMLINE_COLLECT__BUFFER_MB", "DRUMLINE_RINGS__CHAIN", "DRUMLINE_RINGS__FOLDER",
    "DRUMLINE_SERVING__REQUESTS",
)  # fmt: skip
#: Settings that recorded jobs read too.
SPOOL = (
    "DRUMLINE_HOST", "DRUMLINE_SPOOL__ROOT", "DRUMLINE_SPOOL__MAX_MB", "DRUMLINE_SPOOL__AGENT_USER",
    "DRUMLINE_RINGS__RECORDS", "DRUMLINE_RINGS__GRAPHS", "DRUMLINE_RINGS__TIMES",
)  # fmt: skip
#: Set by the Helm chart's injection: the container's own PYTHONPATH.
CHART = ("DRUMLINE_PYTHONPATH",)
#: What all hosts of `drumline check --pairs` share.
PAIRS = ("DRUMLINE_PAIRS_SECRET",)
GRAFANA = (
    "DRUMLINE_CLICKHOUSE_HOST", "DRUMLINE_CLICKHOUSE_PORT", "DRUMLINE_CLICKHOUSE_USER", "DRUMLINE_CLICKHOUSE_PASSWORD",
    "DRUMLINE_CLICKHOUSE_DATABASE", "DRUMLINE_CLICKHOUSE_CA",
    "DRUMLINE_ALERT_WEBHOOK", "DRUMLINE_ALERT_SLACK", "DRUMLINE_ALERT_PAGERDUTY",
)  # fmt: skip
TESTS = (
    "DRUMLINE_TRACES",
    "DRUMLINE_OUTAGE_S",
    "DRUMLINE_KUBE_CACHE",
    "DRUMLINE_ENGINES_PYTHON",
    "DRUMLINE_SGLANG_SOURCES",
)
#: Variables that Kubernetes sets in a container for each Service: NAME_SERVICE_HOST, NAME_PORT=tcp://..., ...
_SERVICE = re.compile(r"_SERVICE_(HOST|PORT(_\w+)?)$|_PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?$")


class InvalidVariables(ValueError):
    """Variables that can only be misspelt settings. The message has a line for each."""


@dataclass(frozen=True, slots=True)
class UnknownVariable:
    """A variable that is no setting.

    text: message for the user; never contains a value.
    is_setting: it can only be a misspelt setting, so it is an error.
    """

    text: str
    is_setting: bool


def setting_names(
    model: type[BaseModel], prefix: str = PREFIX, wanted: Callable[[FieldInfo], bool] = is_setting
) -> Iterator[str]:
    """Yield the environment variable of each setting of `model`; with `has_variable` those of secrets in place of
    their files too.
    """
    for name, info in model.model_fields.items():
        part = section(info)
        if part is not None:
            yield from setting_names(part, f"{prefix}{name.upper()}__", wanted)
        elif wanted(info):
            yield f"{prefix}{name.upper()}"


def for_jobs_only(environment: Mapping[str, str]) -> bool:
    """Return whether all DRUMLINE_ variables are those that jobs read, so that there is nothing to report."""
    return all(name in (*JOBS, *SPOOL, *CHART) for name in environment if name.startswith(PREFIX))


def find_unknown_variables(model: type[BaseModel], environment: Mapping[str, str]) -> list[UnknownVariable]:
    """Return the variables that are no setting of `model` and not known to be foreign, in the environment's order."""
    known = list(setting_names(model, wanted=has_variable))
    bare = {_bare(name): name for name in known}
    whole = {name.rpartition("__")[0] for name in known} - {""}  # DRUMLINE_KAFKA={"bootstrap": ...}
    present = {name.upper() for name in environment}
    unknown = []
    for raw, value in environment.items():
        name = raw.upper()  # pydantic does not mind lower case
        written = raw.encode("unicode_escape").decode()
        meant = bare.get(_bare(name))
        if not name.startswith(PREFIX) or name in known or _of_a_service(name, value):
            continue
        if name in whole:
            if not _is_json(value):
                unknown.append(UnknownVariable(f"{written}: a section of the settings; set {name}__...", True))
        elif name in (*JOBS, *CHART, *PAIRS, *GRAFANA, *TESTS):
            if meant and meant not in present:
                unknown.append(UnknownVariable(f"{written} is Grafana's; the setting is {meant}", False))
        else:
            is_setting = bool(meant) or "__" in name
            near = meant or _nearest(name, [*known, *JOBS])
            text = f"no such setting{f' ({near}?)' if near else ''}; `drumline config` prints all there are"
            unknown.append(UnknownVariable(f"{written}{'' if is_setting else ' is ignored'}: {text}", is_setting))
    return unknown


def _of_a_service(name: str, value: str) -> bool:
    return bool(_SERVICE.search(name)) or (name.endswith("_PORT") and "://" in value)


def _bare(name: str) -> str:
    return name.replace("_", "")


def _nearest(name: str, known: list[str]) -> str:
    """Return a similar name, or ""."""
    tails = {other.removeprefix(PREFIX): other for other in known}
    close = difflib.get_close_matches(name.removeprefix(PREFIX), tails, n=1, cutoff=0.7)
    return tails[close[0]] if close else ""


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
