"""`drumline limits set` refuses what would never alert, or always."""

import pytest
from typer.testing import CliRunner

from drumline.cli.operate import limits


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("straggler_share=2", "straggler_share: 2: what is measured is never above it; the most is 1"),
        ("pageable_share=1.1", "the most is 1; pageable_share=off turns the alert off"),
        ("idle_percent=101", "idle_percent: 101: what is measured is always below it; the most is 100"),
        ("straggler_share=0.01", "0.01 would change nothing"),
        ("straggler_share=10%", "neither a number above 0 nor off; a share of 10 % is 0.1"),
        ("straggler_share=nan", "neither a number above 0 nor off"),
        ("stragler_share=0.5", "no limit is called 'stragler_share'; did you mean straggler_share?"),
    ],
)
def test_a_limit_that_means_nothing_is_refused_before_anything_is_written(value, message):
    answer = CliRunner().invoke(limits.app, ["set", value, "--job", "demo"])
    assert answer.exit_code == 2
    assert message in answer.output
