"""Hosts that take part in a check of pairs, from a list and from the environment of launchers."""

import pytest

from drumline.producers.pairs.roster import Roster, expand_nodes, find_roster


def nowhere(name):
    return False


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("gpu7", ["gpu7"]),
        ("gpu[01-03,7],login", ["gpu01", "gpu02", "gpu03", "gpu7", "login"]),
        ("r[1-2]n[09-10]", ["r1n09", "r1n10", "r2n09", "r2n10"]),
        ("a,b-1.x.org", ["a", "b-1.x.org"]),
    ],
)
def test_lists_of_slurm_are_expanded(text, names):
    assert expand_nodes(text) == names


def test_a_list_that_is_none_of_slurm_is_an_error():
    with pytest.raises(ValueError, match="not a list of hosts"):
        expand_nodes("gpu[a-b]")


def test_the_node_of_a_prolog_is_known_by_slurms_name():
    environment = {"SLURM_JOB_NODELIST": "gpu[1-4]", "SLURMD_NODENAME": "gpu3"}
    assert find_roster(environment, [], "other", nowhere) == Roster(("gpu1", "gpu2", "gpu3", "gpu4"), 2, "gpu1")


def test_a_step_on_part_of_the_nodes_counts_only_these():
    environment = {"SLURM_JOB_NODELIST": "gpu[1-4]", "SLURM_STEP_NODELIST": "gpu[3-4]"}
    assert find_roster(environment, [], "gpu4.cluster", nowhere).names == ("gpu3", "gpu4")


def test_a_given_list_counts_more_than_slurms_and_may_hold_addresses():
    environment = {"SLURM_JOB_NODELIST": "gpu[1-4]"}
    roster = find_roster(environment, ["10.0.0.1", "10.0.0.2"], "gpu2", lambda name: name == "10.0.0.2")
    assert roster == Roster(("10.0.0.1", "10.0.0.2"), 1, "10.0.0.1")


def test_addresses_that_begin_alike_are_not_one_host():
    with pytest.raises(ValueError, match="is none of the hosts"):
        find_roster({}, ["10.0.0.1", "10.0.0.2"], "10.0.0.3", nowhere)


def test_torchrun_names_the_first_host_only():
    environment = {"MASTER_ADDR": "gpu1", "RANK": "8", "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"}
    assert find_roster(environment, [], "gpu2", nowhere) == Roster(("host of rank 0", "host of rank 8"), 1, "gpu1")


def test_without_a_launcher_and_a_list_nothing_is_known():
    with pytest.raises(ValueError, match="--hosts"):
        find_roster({"RANK": "0"}, [], "gpu1", nowhere)


def test_the_job_is_known_by_slurms_id_else_by_torchruns_run():
    slurm = {"SLURM_JOB_ID": "71", "SLURM_JOB_NODELIST": "gpu[1-2]", "TORCHELASTIC_RUN_ID": "r"}
    assert find_roster(slurm, [], "gpu1", nowhere).job == "71"
    torchrun = {"MASTER_ADDR": "a", "RANK": "0", "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "r"}
    assert find_roster(torchrun, [], "a", nowhere).job == "r"
