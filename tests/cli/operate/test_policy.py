"""`drumline policy set`: whoever reaches several jobs is told how many, and asked."""

from contextlib import closing

import pytest
from support import drumline_program, migrated_database

from drumline.infra.clickhouse.client import command, connect
from drumline.views.control.reach import running_jobs

pytestmark = pytest.mark.stack


@pytest.fixture
def fleet(clean_stack):
    """Three running jobs of 4 ranks, and one that ended an hour ago."""
    migrated_database.create(clean_stack)
    with closing(connect(clean_stack, database=clean_stack.clickhouse.database)) as client:
        command(
            client,
            "INSERT INTO processes_versions (job, run, rank, process_id, published) SELECT "
            "['llama-7b', 'llama-70b', 'bert', 'old'][intDiv(number, 4) + 1] AS name, 'r', number % 4, "
            "toString(number), now64(3) - (name = 'old') * 3600 FROM numbers(16)",
        )
    return clean_stack


def test_what_reaches_several_jobs_names_them_and_waits_for_a_yes(fleet, environment_of):
    assert running_jobs(fleet, "*") == {"bert": 4, "llama-70b": 4, "llama-7b": 4}
    assert running_jobs(fleet, "llama-7*") == {"llama-70b": 4, "llama-7b": 4}

    def policy_set(*options):
        done = drumline_program.run("policy", "set", "always", *options, environment=environment_of(fleet))
        return done.returncode, done.stderr

    code, output = policy_set("--job", "llama-*")
    assert (code, output) == (
        2,
        "drumline policy: always would be the policy of 2 running jobs with 8 ranks (llama-70b, llama-7b), and those "
        "that begin meanwhile; confirm with --yes, or name fewer with --job\n",
    )
    assert policy_set()[0] == 2
    length = policy_set("--for", "2", "--job", "bert")
    assert length == (2, "drumline policy: --for '2' is no length of time; write 90s, 30m, 2h or 7d\n")
    for options in (("--yes",), ("--job", "bert"), ("--job", "be*")):
        code, output = policy_set(*options)
        assert "confirm" not in output, options
        assert code == 1, "no topic is there"


def test_without_an_answer_of_clickhouse_the_pattern_is_what_is_known(private, environment_of):
    nowhere = {"DRUMLINE_CLICKHOUSE__URL": "http://127.0.0.1:9"}
    done = drumline_program.run("policy", "set", "off", environment=environment_of(private) | nowhere)
    assert done.returncode == 2
    assert "every job named '*' (how many run is not known: ClickHouse does not answer)" in done.stderr
