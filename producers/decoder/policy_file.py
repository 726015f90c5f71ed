"""Applies the collection policy while a process runs: the host's control file, else the process's own policy."""

from __future__ import annotations

from collections.abc import Mapping

from drumline.producers.ipc.buffer_pool import Header
from drumline.producers.ipc.policy import BadPolicy, parse, read_policy_text
from drumline.producers.spool.location import control_file


class PolicyFile:
    """Writes the policy that applies now into the buffer pool, where the collector reads it.

    `header`: of the buffer pool. `problems`: the session's, short name -> sentence; gets "control".
    """

    def __init__(self, environment: Mapping[str, str], header: memoryview, problems: dict[str, str]) -> None:
        self._environment, self._header, self._problems = environment, header, problems
        self._process_policy = self._text = ""

    def begin(self, process_policy: str) -> None:
        """Take the policy that the process was attached with."""
        self._process_policy = self._text = process_policy

    def refresh(self) -> bool:
        """Read the control file and apply a new policy. Returns whether its text has changed."""
        try:
            text = read_policy_text(control_file(self._environment)) or self._process_policy
        except OSError as error:
            self._problems["control"] = str(error)
            return False
        if text == self._text:
            return False
        self._text = text
        try:
            policy = parse(text)
        except BadPolicy as error:
            self._problems["control"] = str(error)
            return True
        self._problems.pop("control", None)
        header = self._header
        header[Header.WINDOW_NS], header[Header.PERIOD_NS] = policy.window_ns, policy.period_ns
        header[Header.MODE] = policy.mode
        return True
