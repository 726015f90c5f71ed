"""The policy of a process while it runs: the control file's, for all processes of the host, or its own."""

from __future__ import annotations

from collections.abc import Mapping

from drumline.producers.identity import control_file
from drumline.producers.ipc import buffer_pool as pool_words
from drumline.producers.ipc.policy import BadPolicy, parse, written


class PolicyFile:
    """`words`: of the buffer pool, where the process looks. `problems`: short name -> sentence, of the session."""

    def __init__(self, environment: Mapping[str, str], words: memoryview, problems: dict[str, str]) -> None:
        self._environment, self._words, self._problems = environment, words, problems
        self._own = self._text = ""

    def begin(self, own: str) -> None:
        """The process was attached with this policy."""
        self._own = self._text = own

    def refresh(self) -> bool:
        """The policy in the control file, when that changes; without one, the process's own. Whether it has changed."""
        try:
            text = written(control_file(self._environment)) or self._own
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
        words = self._words
        words[pool_words.WINDOW_NS], words[pool_words.PERIOD_NS] = policy.window_ns, policy.period_ns
        words[pool_words.MODE] = policy.mode
        return True
