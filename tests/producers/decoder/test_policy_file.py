"""The policy that a decoder applies: the host's file, else what is asked from afar, else the process's own."""

import json
import os

import pytest

from drumline.producers.decoder.policy_file import PolicyFile
from drumline.producers.ipc.buffer_pool import BufferPool, Header
from drumline.producers.ipc.control import FILE, LEASE_NS, ProcessPlace
from drumline.producers.ipc.policy import ALWAYS, AUTO, OFF, ROLLUP

NOW = 10**18
ME = ProcessPlace("j", "r", 3, "h")


class Decoder:
    def __init__(self, root, pool):
        self.root, self.pool, self.problems = root, pool, {}
        self.start()

    def start(self):
        """A decoder begins, perhaps in place of one that was killed."""
        self.file = PolicyFile({"DRUMLINE_SPOOL__ROOT": str(self.root)}, self.pool.header, self.problems)
        self.file.begin("auto")

    def request(self, renewed_ns=NOW, **change):
        content = {
            "key": "w", "kind": "window", "policy": "always", "job": "j", "run": "", "host": "*", "ranks": [3],
            "last_step": 9, "start_ns": NOW - 1, "until_ns": NOW + 10**12, "requested_ns": 1,
        } | change  # fmt: skip
        (self.root / FILE).write_text(json.dumps([content]))
        os.utime(self.root / FILE, ns=(renewed_ns, renewed_ns))

    def at(self, now_ns=NOW, step=-1):
        changed = self.file.refresh(ME, now_ns, step)
        return self.pool.header[Header.MODE], self.file.answer, changed


@pytest.fixture
def decoder(tmp_path):
    return Decoder(tmp_path, BufferPool(2, 4096))


def test_a_window_is_answered_and_ends_with_its_last_step(decoder):
    assert decoder.at()[:2] == (AUTO, "")
    decoder.request()
    assert decoder.at(step=9) == (ALWAYS, "running w", True)
    assert decoder.at(step=9) == (ALWAYS, "running w", False)
    assert decoder.at(step=10) == (AUTO, "done w", True)
    assert decoder.at(step=10) == (AUTO, "done w", False)


def test_a_window_whose_steps_are_over_before_it_can_begin_is_rejected(decoder):
    decoder.request()
    assert decoder.at(step=10)[:2] == (
        AUTO,
        "rejected w: its steps were over when it could begin; a longer --lead helps",
    )
    assert not decoder.at(step=11)[2]


def test_a_window_ends_at_its_time_and_when_no_agent_renews_it(decoder):
    decoder.request(until_ns=NOW + 5)
    assert decoder.at()[0] == ALWAYS
    assert decoder.at(NOW + 5)[:2] == (AUTO, "done w")
    decoder.request(key="x")
    assert decoder.at()[0] == ALWAYS
    assert decoder.at(NOW + LEASE_NS + 1)[:2] == (AUTO, "done x")


def test_a_decoder_that_follows_a_killed_one_ends_what_that_began(decoder):
    decoder.request()
    assert decoder.at()[0] == ALWAYS
    decoder.start()
    assert decoder.at(NOW + LEASE_NS + 1)[0] == AUTO
    decoder.request()
    decoder.start()
    assert decoder.at()[:2] == (ALWAYS, "running w")


def test_the_file_of_the_host_comes_first_and_the_answer_states_it(decoder):
    decoder.request()
    (decoder.root / "policy").write_text("off\n")
    assert decoder.at()[:2] == (OFF, "rejected w: the policy file of its host is in force")
    (decoder.root / "policy").unlink()
    assert decoder.at()[:2] == (ALWAYS, "running w")


def test_rollup_is_chosen_when_a_process_starts_and_stays(decoder):
    (decoder.root / "policy").write_text("rollup\n")
    assert decoder.at()[0] != ROLLUP
    assert "when a process starts" in decoder.problems["control"]
    assert not decoder.file.keeps
    (decoder.root / "policy").unlink()
    decoder.file.begin("rollup")
    assert decoder.at()[0] == ROLLUP
    decoder.request()
    assert decoder.at()[:2] == (ROLLUP, "rejected w: its rows stay on the host: drumline pull")
    decoder.request(kind="policy", policy="off", key="p")
    assert decoder.at()[:2] == (OFF, "running p")
    assert decoder.file.keeps, "what is recorded stays on the host"


def test_a_window_of_a_rollup_process_overrules_no_policy(decoder):
    decoder.file.begin("rollup")
    window = {
        "key": "w", "kind": "window", "policy": "always", "job": "j", "run": "", "host": "*", "ranks": [3],
        "last_step": 9, "start_ns": NOW - 1, "until_ns": NOW + 10**12, "requested_ns": 1,
    }  # fmt: skip
    (decoder.root / FILE).write_text(json.dumps([window, window | {"key": "p", "kind": "policy", "policy": "off"}]))
    os.utime(decoder.root / FILE, ns=(NOW, NOW))
    assert decoder.at()[:2] == (OFF, "running p")


def test_a_refused_policy_ends_the_window_that_runs(decoder):
    decoder.request(launches=True, stacks=True, pc=True)
    assert decoder.at()[0] == ALWAYS
    assert decoder.pool.header[Header.STACKS]
    (decoder.root / "policy").write_text("nonsense\n")
    assert decoder.at() == (AUTO, "rejected w: the policy file of its host is in force", True)
    assert (decoder.file.launches, decoder.file.pc) == (False, False)
    assert not decoder.pool.header[Header.STACKS]
    assert not decoder.at()[2]
    (decoder.root / "policy").unlink()
    assert decoder.at()[:2] == (ALWAYS, "running w")


def test_another_process_is_not_concerned_and_a_bad_file_is_reported(decoder):
    decoder.request(ranks=[4])
    assert decoder.at()[:2] == (AUTO, "")
    (decoder.root / FILE).write_text("{")
    os.utime(decoder.root / FILE, ns=(NOW, NOW))
    assert decoder.at() == (AUTO, "", True)
    assert "no control file" in decoder.problems["control"]
    (decoder.root / FILE).unlink()
    assert decoder.at()[2]
    assert decoder.problems == {}


def test_a_process_that_ends_in_a_window_answers_that_it_is_done(decoder):
    decoder.request()
    decoder.at()
    decoder.file.end()
    assert decoder.file.answer == "done w"
