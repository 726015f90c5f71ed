"""A command that does not exist: the ones that are spelt alike are named."""

import pytest
from click.testing import CliRunner

from drumline.cli.app import root


@pytest.mark.parametrize(
    ("typed", "answer"),
    [
        ("explan", "no command 'explan'; did you mean explain or replay?"),
        ("timelin", "no command 'timelin'; did you mean timeline?"),
        ("stop", "no command 'stop'; type: drumline down"),
        ("version", "no command 'version'; type: drumline --version"),
        ("offenders", "no command 'offenders'; it is a question: drumline sql offenders"),
        ("zzz", "no command 'zzz'; `drumline --help` lists the commands"),
    ],
)
def test_a_misspelt_command_is_answered_with_the_nearest(typed, answer):
    result = CliRunner().invoke(root, [typed, "JOB"])
    assert result.exit_code == 2
    assert result.output == f"Error: {answer}\n"
