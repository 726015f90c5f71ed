"""Each process of a job has one rank: as its file states it, else by the file's name, else by the order of files."""

import json

import pytest
from support.kineto_files import small_job, trace_file

from drumline.producers.foreign.read_traces import read_traces, trace_of
from drumline.producers.foreign.recognise import Format
from drumline.producers.foreign.write_recording import write_recording
from drumline.producers.replay.parquet import BadTrace
from drumline.producers.replay.rank_scaling import BadRanks
from drumline.producers.replay.recording import RecordedJob
from drumline.producers.replay.trace import read_trace
from drumline.schemas.topics import Topic


def without_info(events):
    text = json.loads(trace_file(events))
    del text["distributedInfo"]
    return json.dumps(text)


def read(paths):
    return list(read_traces(paths, Format.KINETO))


def test_the_stated_rank_is_taken_whatever_the_name_is(tmp_path):
    path = tmp_path / "rank-7.json"
    path.write_text(trace_file(small_job()[0], 2, 4))
    [trace] = read([path])
    assert (trace.rank, trace.world_size, trace.notes) == (2, 4, ())


@pytest.mark.parametrize("name", ["rank3.json", "trace_rank-3.json", "worker3_step_12.json", "job.RANK_003.json"])
def test_else_the_rank_is_in_the_name(tmp_path, name):
    (tmp_path / name).write_text(without_info(small_job()[0]))
    [trace] = read([tmp_path / name])
    assert trace.rank == 3
    assert trace.notes == ("the rank is from the file's name",)


def test_else_it_is_the_place_of_the_file_and_that_is_reported(tmp_path):
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text(without_info(small_job()[0]))
    traces = read([tmp_path / "a.json", tmp_path / "b.json"])
    assert [trace.rank for trace in traces] == [0, 1]
    assert all("by the order of the files" in trace.notes[0] for trace in traces)


def test_a_rank_with_two_files_is_refused(tmp_path):
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text(trace_file(small_job()[0], 1, 2))
    with pytest.raises(BadTrace, match=r"b\.json: rank 1 a second time, .*a\.json has it too"):
        read([tmp_path / "a.json", tmp_path / "b.json"])


def test_a_rank_beyond_the_job_is_refused(tmp_path):
    (tmp_path / "a.json").write_text(trace_file(small_job()[0], 9, 2))
    with pytest.raises(BadTrace, match="rank 9 of 2 ranks cannot be"):
        read([tmp_path / "a.json"])


@pytest.fixture
def some_ranks(tmp_path):
    """Files of ranks 1 and 3 of 4."""
    paths = []
    for rank in (3, 1):
        paths.append(tmp_path / f"{rank}.json")
        paths[-1].write_text(trace_file(small_job(ranks=4)[rank], rank, 4))
    return paths


def test_some_ranks_keep_their_numbers_and_the_world_size(some_ranks, tmp_path):
    trace, summary = trace_of(read(some_ranks), "job")
    assert summary.missing() == "2 of the job's 4 ranks have no file: 0, 2"
    job = RecordedJob(trace, topics={Topic.STEP})
    assert [replayed.info.rank for replayed in job.rank_sources] == [1, 3]
    assert {out.batch.envelope["world_size"] for out in job.batches()} == {4}
    with pytest.raises(BadRanks, match="lacks ranks of its 4"):
        RecordedJob(trace, ranks=8)


def test_a_written_recording_has_what_the_traces_have(some_ranks, tmp_path):
    trace, _ = trace_of(read(some_ranks), "job")
    activities = [process.activity for process in sorted(read(some_ranks), key=lambda process: process.rank)]
    summary = write_recording(tmp_path / "out", read_traces(some_ranks, Format.KINETO), "job")
    assert summary.ranks == [1, 3]
    written = read_trace(tmp_path / "out")
    assert written.ranks == trace.ranks
    assert written.world_size == 4
    for before, after in zip(activities, written.activities, strict=True):
        for table in ("kernels", "copies", "markers", "payloads"):
            first, second = getattr(before, table), getattr(after, table)
            assert first.rows == second.rows
            for column in first.columns.keys() - {"name", "domain"}:
                assert first[column].tolist() == second[column].tolist(), (table, column)
        names = [[t.dictionaries["names"][i] for i in t["name"]] for t in (before.kernels, after.kernels)]
        assert names[0] == names[1]


def test_a_failed_import_leaves_no_manifest(some_ranks, tmp_path):
    (tmp_path / "cut.json").write_text(some_ranks[0].read_text()[:-900])
    with pytest.raises(BadTrace, match="cut off"):
        write_recording(tmp_path / "out", read_traces([some_ranks[1], tmp_path / "cut.json"], Format.KINETO), "job")
    assert not (tmp_path / "out" / "manifest.json").exists()
