"""`drumline check --pairs` on two to eight hosts, network namespaces with a link between each two of them."""

import json
import os
import subprocess
import sys
from contextlib import contextmanager

import pytest
from support.namespaces import hosts
from support.wait_limit import WAIT_S

#: Bytes a second of a healthy link.
RATE = 4e7


class PairLab:
    """Hosts on which the check runs. `names`: of all of them."""

    def __init__(self, of):
        self.of, self.names = of, of.names

    def limit(self, host, peer, rate):
        self.of.limit(self.names[host], self.names[peer], rate)

    def check(self, present=None, *arguments):
        """Return (exit code, answer) of each host on which it is started; the answer is None without a result."""
        addresses = ",".join(map(self.of.own_address, self.names))
        command = [sys.executable, "-m", "drumline.cli.app", "check", "--pairs", "--json", "--hosts", addresses]
        environment = {**os.environ, "DRUMLINE_PAIRS_SECRET": "of these hosts only"}
        present = range(len(self.names)) if present is None else present
        started = [
            subprocess.Popen(
                [*self.of.inside(self.names[number]), *command, *arguments],
                env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )
            for number in present
        ]  # fmt: skip
        outputs = [process.communicate(timeout=WAIT_S) for process in started]
        return [
            (process.returncode, json.loads(output) if output else errors.strip())
            for process, (output, errors) in zip(started, outputs, strict=True)
        ]


@contextmanager
def pair_lab(count):
    if os.geteuid():
        pytest.skip("network namespaces need root")
    with hosts([f"node-{number}" for number in range(count)]) as of:
        lab = PairLab(of)
        for host in range(count):
            for peer in range(count):
                if host != peer:
                    lab.limit(host, peer, RATE)
        yield lab


def findings(answers):
    """Return (kind, hosts) of the findings, which all hosts have alike."""
    named = [[(of["kind"], of["hosts"]) for of in answer["findings"]] for _, answer in answers]
    assert all(of_this == named[0] for of_this in named)
    return named[0]


@pytest.mark.long  # a Python for each host and check
@pytest.mark.parametrize("count", [2, 3, 8])
def test_a_slow_link_is_named_with_its_direction_and_a_healthy_one_is_not(count):
    with pair_lab(count) as lab:
        healthy = lab.check()
        assert (findings(healthy), {code for code, _ in healthy}) == ([], {0})
        [pairs] = {len(answer["pairs"]) for _, answer in healthy}
        assert (pairs, healthy[0][1]["rounds"]) == (count * (count - 1) // 2, {2: 1, 3: 3, 8: 7}[count])
        lab.limit(1, 0, RATE / 2)
        slow = lab.check()
        assert findings(slow) == [("slow_link", [*map(lab.of.own_address, ("node-1", "node-0"))])]
        assert [code for code, _ in slow] == [10, 10, *[0] * (count - 2)]


@pytest.mark.long
@pytest.mark.parametrize("count", [3, 8])
def test_a_slow_host_is_named_beside_a_slow_link_and_a_host_that_does_not_come(count):
    with pair_lab(count) as lab:
        for peer in range(count - 1):
            lab.limit(count - 1, peer, RATE / 4)
            lab.limit(peer, count - 1, RATE / 4)
        answers = lab.check()
        assert findings(answers) == [("slow_host", [lab.of.own_address(f"node-{count - 1}")])]
        assert [code for code, _ in answers] == [*[0] * (count - 1), 1]
        if count == 8:
            lab.limit(2, 3, RATE / 3)
            answers = lab.check([0, 2, 3, 4, 5, 6, 7], "--wait", "15")
            assert findings(answers) == [
                ("missing", [lab.of.own_address("node-1")]),
                ("slow_host", [lab.of.own_address("node-7")]),
                ("slow_link", [*map(lab.of.own_address, ("node-2", "node-3"))]),
            ]
            assert [code for code, _ in answers] == [10, 10, 10, 10, 10, 10, 1]


@pytest.mark.long
def test_a_cut_link_is_one_and_without_the_first_host_the_others_name_it():
    with pair_lab(4) as lab:
        lab.of.cut("node-1", "node-2")
        answers = lab.check()
        assert findings(answers) == [("unmeasured", [])]
        ends = " <-> ".join(map(lab.of.own_address, ("node-1", "node-2")))
        assert f"not measured: {ends}" in answers[0][1]["findings"][0]["text"]
        answers = lab.check([1, 3], "--wait", "3")
        assert [code for code, _ in answers] == [10, 10]
        assert all("10.78.0.1 did not come within 3 s" in text for _, text in answers)
