"""Applies the policy while a process runs: the host's file, else what is asked from afar, else the process's own."""

from __future__ import annotations

from collections.abc import Mapping

from drumline.producers.ipc.buffer_pool import Header
from drumline.producers.ipc.control import FILE, ControlRequest, ProcessPlace, chosen, read_requests
from drumline.producers.ipc.plain_file import untrusted
from drumline.producers.ipc.policy import MODES, ROLLUP, parse, read_policy_text
from drumline.producers.spool.location import control_file, spool_root


class PolicyFile:
    """Writes the policy that applies now into the buffer pool, where the collector reads it.

    `header`: of the buffer pool. `problems`: the session's, short name -> sentence; gets "control".
    `keeps`: whether the process's rows stay on the host, for as long as it runs: no window then counts a part of them.
    `launches`, `pc`: whether the request that counts now asks for launches, and for samples of the GPU.
    `answer`: what became of the newest request that names the process: "running KEY", "done KEY" or
    "rejected KEY: REASON"; "" before the first.
    """

    def __init__(self, environment: Mapping[str, str], header: memoryview, problems: dict[str, str]) -> None:
        self._environment, self._header, self._problems = environment, header, problems
        self._process_policy = ""
        self._text: str | None = None
        self._running = self._seen = self.answer = ""
        self.launches = self.pc = self.keeps = False
        self._rejected: set[str] = set()

    def begin(self, process_policy: str) -> None:
        """Take the policy that the process was attached with. What a decoder before this one applied is not known."""
        self._process_policy, self._text = process_policy, None
        self.keeps = process_policy == MODES[ROLLUP]

    def refresh(self, place: ProcessPlace, now_ns: int, step: int) -> bool:
        """Read the files and apply a new policy. `step`: the last one that began, -1 = not known. Returns whether the
        policy or the answer has changed."""
        before = self.answer, self._problems.get("control")
        try:
            text, request = self._wanted(place, now_ns, step)
            is_new = bool(text) and text != self._text
            policy = parse(text) if is_new else None
            if policy is not None and policy.mode == ROLLUP and not self.keeps:
                raise ValueError("policy rollup is chosen when a process starts: drumline run --policy rollup")
        except (OSError, ValueError) as error:  # BadPolicy too
            self._problems["control"] = str(error)
            self._end_window()
            return (self.answer, self._problems["control"]) != before
        self._state_untrusted()
        self.launches = request is not None and request.launches
        self.pc = request is not None and request.pc
        self._header[Header.STACKS] = self.launches and request is not None and request.stacks
        if self.launches:  # before the window is switched on
            self._header[Header.LAUNCHES] = 1
        self._answer(request)
        if policy is not None:
            self._header[Header.MODE], self._text = policy.mode, text
        return is_new or (self.answer, self._problems.get("control")) != before

    def _state_untrusted(self) -> None:
        """State as a problem that a file is there which does not count; it stops nothing."""
        self._problems.pop("control", None)
        if reason := untrusted(control_file(self._environment), spool_root(self._environment) / FILE):
            self._problems["control"] = reason

    def reject(self, reason: str) -> None:
        """Answer the request that runs with a reason; it does not count any more."""
        if self._running:
            self._rejected.add(self._running)
            self.answer, self._running = f"rejected {self._running}: {reason}", ""

    def end(self) -> None:
        """Close the answer: the process has ended."""
        self._answer(None)

    def _end_window(self) -> None:
        """End a request that runs, as the next text is refused: the process's own policy holds again."""
        if not self._running:
            return
        if self.answer == f"running {self._running}":  # else it states a better reason
            self._answer(None)
        self._running = ""
        self.launches = self.pc = False
        self._text = self._process_policy
        self._header[Header.STACKS], self._header[Header.MODE] = 0, parse(self._process_policy).mode

    def _wanted(self, place: ProcessPlace, now_ns: int, step: int) -> tuple[str, ControlRequest | None]:
        requests = [r for r in read_requests(spool_root(self._environment), now_ns) if r.key not in self._rejected]
        request = chosen(requests, place, now_ns, step)
        if (
            request is None
            and (late := chosen(requests, place, now_ns))
            and late.key not in (self._running, self._seen)
        ):
            self._seen, self.answer = (
                late.key,
                f"rejected {late.key}: its steps were over when it could begin; a longer --lead helps",
            )
        text = read_policy_text(control_file(self._environment))
        if self.keeps and request is not None and request.kind == "window":
            self.answer = f"rejected {request.key}: its rows stay on the host: drumline pull"
            request = chosen([other for other in requests if other.kind != "window"], place, now_ns, step)
        if text and request is not None:
            self.answer, request = f"rejected {request.key}: the policy file of its host is in force", None
        return text or (request.policy if request is not None else self._process_policy), request

    def _answer(self, request: ControlRequest | None) -> None:
        if self._running and (request is None or request.key != self._running):
            self.answer, self._running = f"done {self._running}", ""
        if request is not None:
            self._running = self._seen = request.key
            self.answer = f"running {request.key}"
