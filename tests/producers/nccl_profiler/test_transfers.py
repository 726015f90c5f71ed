"""Records of the transfers of NCCL's proxy threads, under a fake NCCL."""

import time

import numpy as np
import pytest
from support.fake_nccl import Programs, Ring, only

from drumline.producers.rings.host_rings import RingFolder
from drumline.producers.rings.ring_file import RECEIVED, SENT, TRANSFER_UNIT_NS, TRANSFERS, Kind
from drumline.producers.spool.quota import SpoolLimits
from drumline.producers.spool.segment_format import SEGMENT_MAGIC, scan
from drumline.schemas.batch import decode
from drumline.schemas.model import model
from drumline.schemas.topics import Topic

MS = 1_000_000
#: Versions of NCCL's interface whose proxy steps have their sizes and all their waits.
VERSIONS = [4, 5, 6, 7]


@pytest.fixture(scope="session")
def programs(tmp_path_factory):
    return Programs(tmp_path_factory.mktemp("programs"))


@pytest.fixture
def ring(programs, tmp_path):
    """Runs a scenario and returns its ring."""

    def run(scenario: str, version: int = 5, kind: str = "plain", **more: str) -> Ring:
        folder = tmp_path / f"rings-{len(list(tmp_path.iterdir()))}"
        done = programs.run(scenario, version, folder, kind, **more)
        assert (done.returncode, done.stderr) == (0, "")
        return only(folder)

    return run


def transfers(ring: Ring) -> np.ndarray:
    return ring.records[ring.records["kind"] == Kind.TRANSFERS].view(TRANSFERS)


def ms(records: np.ndarray, names: str) -> list[tuple[float, ...]]:
    return [tuple(int(r[name]) * TRANSFER_UNIT_NS / MS for name in names.split()) for r in records]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_record_splits_the_time_of_an_operation_on_a_channel_by_what_it_waited_for(ring, version):
    result = ring("transfers", version, TIMES="all")
    records = transfers(result)
    names = ("direction", "channel", "peer", "step", "transfers", "bytes", "comm", "generation")
    assert [tuple(int(r[name]) for name in names) for r in records] == [
        (SENT, 0, 6, 7, 2, 3_000, 0, 1),
        (SENT, 1, 6, 7, 1, 500, 0, 1),
        (RECEIVED, 0, 4, 7, 1, 800, 0, 1),
    ]
    assert ms(records, "gpu_wait peer_wait network flush") == [
        (3, 3, 10, 0),
        (0, 0, 7, 0),
        (2, 3, 0, 1),
    ]
    assert result.header["transfers_dropped"] == result.header["unknown"] == 0


def test_the_time_in_which_a_link_was_busy_is_known_across_channels(ring):
    records = transfers(ring("transfers", TIMES="all"))
    begin = records["busy_from_ns"].astype(int) / MS
    busy = [busy for (busy,) in ms(records, "busy")]
    assert list(zip(begin, begin + busy, strict=True)) == [(0, 6), (1, 8), (0, 3)]  # the last one is another link


@pytest.mark.parametrize(("version", "setting"), [(3, "all"), (5, "gpu")])
def test_no_transfer_is_recorded_where_it_is_off_or_has_no_size(ring, version, setting):
    result = ring("transfers", version, TIMES=setting)
    assert (len(transfers(result)), len(result.operations), result.header["unknown"]) == (0, 1, 0)


@pytest.mark.parametrize("sends", ["0", "1"])
def test_a_part_of_the_operations_is_chosen_the_same_by_all_ranks(ring, sends):
    of_ranks = [transfers(ring("chosen", count="40", sends=sends, rank=str(rank))) for rank in (0, 1)]
    chosen = [(records["bytes"] - 1_000).tolist() for records in of_ranks]
    assert chosen[0] == chosen[1]
    assert 4_000 / 8 * 0.6 < len(chosen[0]) < 4_000 / 8 * 1.6
    if sends == "1":  # all of a step
        assert set(np.unique(of_ranks[0]["step"], return_counts=True)[1].tolist()) == {40}
    else:  # not always the same ones of a step
        assert len({number % 40 for number in chosen[0]}) == 40


def test_of_dense_calls_fewer_are_chosen_and_all_while_the_agent_asks(ring):
    records = transfers(ring("chosen", count="100", dense="1"))
    of_step = np.bincount(records["step"], minlength=100)
    all_ranks = transfers(ring("chosen", count="100"))
    assert of_step[:80].sum() > 2 * 8_000 / 64
    assert 0 < of_step[80:90].sum() < 1_000 / 64 * 2.5
    assert set(of_step[90:].tolist()) == {100}
    dense = records[(records["step"] >= 80) & (records["step"] < 90)]
    assert set(dense["bytes"].tolist()) <= set(all_ranks["bytes"].tolist())


def test_a_job_switches_the_recording_of_transfers_off_and_on(ring):
    result = ring("chosen", TIMES="all", count="2", pause="1")
    steps = set(range(100)) - {*range(40, 45), *range(90, 95)}
    assert set(transfers(result)["step"].tolist()) == steps
    assert len(result.operations) == 200


def test_transfers_leave_most_of_the_ring_to_operations(ring):
    result = ring("chosen", TIMES="all", RECORDS="64", count="20")  # 100 times, until the agent reads
    assert (result.header["transfers_dropped"], result.header["dropped"]) == (1_300, 0)


def test_what_an_aborted_communicator_left_under_way_makes_room_for_others(ring):
    result = ring("abandoned", TIMES="all")
    assert result.header["transfers_dropped"] == 2
    assert result.header["written"] == 2 + 3_000


def test_links_of_closed_communicators_make_room_for_others(ring):
    result = ring("links", TIMES="all")
    assert (result.header["transfers_dropped"], result.header["written"]) == (0, 2 * 20_000)
    assert set(transfers(result)["busy"].tolist()) == {MS // TRANSFER_UNIT_NS}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_chained_plugin_gets_no_event_again_that_has_ended(ring, programs, tmp_path, version):
    """A transfer's handle comes again 8 transfers later, also where the plugin has none for it."""
    log = tmp_path / "calls"
    more = {"CHAIN": str(programs.chained("4567")), "chained_log": str(log), "chained_mask": str(0xFFFF)}
    ring("steps", version, TIMES="all", **more, chained_once="16")
    assert [line.split()[0] for line in log.read_text().splitlines() if line.split()[1:3] == ["16", "mine"]] == ["stop"]


@pytest.mark.parametrize("kind", ["plain", "address"])
def test_a_record_that_is_being_filled_again_is_no_parent_of_a_transfer(ring, kind):
    assert ring("refilled", kind=kind, TIMES="all", RECORDS="64").header["unknown"] == 0


def test_a_child_of_a_process_without_transfers_writes_to_no_table_of_them(ring):
    ring("light_fork")


@pytest.mark.parametrize(
    ("kind", "version"), [("plain", 5), *(("address", v) for v in VERSIONS), *(("thread", v) for v in VERSIONS)]
)
def test_proxy_threads_record_every_operation_beside_the_threads_that_call(ring, kind, version):
    result = ring("threads", version, kind, TIMES="all")
    records = transfers(result)
    assert (result.header["transfers_dropped"], result.header["dropped"], result.header["unknown"]) == (0, 0, 0)
    assert len(records) == 2 * 4 * 300
    assert records["transfers"].sum() * 1_000 == records["bytes"].sum()
    assert (records["direction"] == np.where(records["peer"] == 6, SENT, RECEIVED)).all()


@pytest.mark.parametrize("kind", ["address", "thread"])
@pytest.mark.parametrize("scenario", ["transfers", "race", "forked", "churn", "steps"])
def test_sanitizers_find_nothing(programs, tmp_path, scenario, kind):
    done = programs.run(scenario, 6, tmp_path, kind, TIMES="all", RECORDS="128")
    assert (done.returncode, done.stderr) == (0, "")


def test_the_agent_publishes_a_row_for_each_peer_and_direction(programs, tmp_path):
    root = tmp_path / "spool"
    root.mkdir()
    assert programs.run("transfers", 5, root / ".rings", TIMES="all", rank="5", drumline_job="wide").returncode == 0
    folder = RingFolder(root / ".rings", root, SpoolLimits(), iter(range(0, 1_000, 10)).__next__)
    folder.round(time.time_ns() + 10**10)
    folder.close()
    [spool] = [path for path in root.iterdir() if not path.name.startswith(".")]
    frames = [frame for path in spool.glob("*.seg") for frame in scan(path.read_bytes()[len(SEGMENT_MAGIC) :])]
    [batch] = [decode(model(f.topic), f.body) for f in frames if f.topic == Topic.TRANSFER and f.rows]
    assert [batch.envelope[name] for name in ("job", "rank")] == ["wide", 5]
    names = ("comm_rank", "ranks", "peer", "channels", "operations", "transfers", "bytes", "first_step", "last_step")
    rows = sorted(zip(*(batch.columns[name].tolist() for name in names), strict=True))
    assert rows == [(5, 8, 4, 1, 1, 1, 800, 7, 7), (5, 8, 6, 2, 2, 3, 3_500, 7, 7)]
    assert sorted(batch.strings("direction", "directions").tolist()) == ["receive", "send"]
    assert set(batch.strings("communicator", "communicators").tolist()) == {f"{42:016x}"}
    assert batch.columns["busy_ns"].sum() == (8 + 3) * MS
