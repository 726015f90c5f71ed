"""Exports of Nsight Systems: the same facts as a recording of drumline, whatever the export lacks."""

import lzma
import sqlite3
from pathlib import Path

import numpy as np
import pytest
from support.foreign_files import beginning, write_nsys

from drumline.producers.derive.nccl import kernel_names as nccl
from drumline.producers.derive.rows import derive
from drumline.producers.foreign.nsys.nsys_processes import read_nsys
from drumline.producers.replay.parquet import BadTrace

DATA = Path(__file__).parents[3] / "data"


@pytest.fixture(scope="module")
def recorded():
    return beginning(DATA / "traces/mesh-2x2")


@pytest.fixture(scope="module")
def export(recorded, tmp_path_factory):
    path = tmp_path_factory.mktemp("nsys") / "report.sqlite"
    write_nsys(recorded, path)
    return path


@pytest.fixture(scope="module")
def public(tmp_path_factory):
    path = tmp_path_factory.mktemp("nsys") / "mfu_2gpu_before.sqlite"
    path.write_bytes(lzma.decompress((DATA / "foreign/nsys/mfu_2gpu_before.sqlite.xz").read_bytes()))
    return path


def changed(path, target, *statements):
    """Return a copy of an export on which the statements were run."""
    target.write_bytes(path.read_bytes())
    with sqlite3.connect(target) as base:
        for statement in statements:
            base.execute(statement)
    base.close()
    return target


def test_the_rows_derived_from_an_export_are_those_of_the_recording(recorded, export):
    processes = list(read_nsys(export))
    assert [(p.rank, p.world_size, p.host) for p in processes] == [(rank, 2, "node-a") for rank in range(2)]
    for process, activity in zip(processes, recorded.activities, strict=True):
        got, wanted = derive(process.activity), derive(activity)
        assert wanted.steps.rows > 10
        for table in ("steps", "collectives"):
            for name, values in getattr(wanted, table).columns.items():
                np.testing.assert_array_equal(getattr(got, table)[name], values, err_msg=f"{table}.{name}")


def test_kernels_of_an_export_that_begins_in_the_middle_belong_to_the_calls_that_launched_them(public):
    for process, pid in zip(read_nsys(public), (144, 145), strict=True):
        rows = derive(process.activity)
        assert (process.pid, process.host, process.rank) == (pid, "modal", -1)  # no blobs: no rank
        assert rows.counts.unattributed_collectives == 0
        assert rows.collectives.rows == 33
        assert (nccl.operation_class(rows.collectives["operation"]) == nccl.SEND_RECV).all()


def test_without_launches_calls_and_kernels_are_matched_by_their_order(export, tmp_path):
    with sqlite3.connect(export) as base:
        assert not base.execute("SELECT 1 FROM sqlite_master WHERE name = 'CUPTI_ACTIVITY_KIND_RUNTIME'").fetchall()
    base.close()
    assert derive(next(read_nsys(export)).activity).counts.unattributed_collectives == 0


def test_without_blobs_ranks_are_not_known(export, tmp_path):
    path = changed(export, tmp_path / "report.sqlite", "UPDATE NVTX_EVENTS SET binaryData = NULL")
    assert {process.rank for process in read_nsys(path)} == {-1}


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL", "no kernels of a process"),
        ("DROP TABLE StringIds", "not an export of Nsight Systems"),
        ("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = 'soon'", "CUPTI_ACTIVITY_KIND_KERNEL"),
        ("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET gridX = 9e99", "grid_x is not a number that fits"),
    ],
)
def test_a_broken_export_is_named_with_its_table(export, tmp_path, statement, reason):
    path = changed(export, tmp_path / "broken.sqlite", statement)
    with pytest.raises(BadTrace, match=reason) as caught:
        list(read_nsys(path))
    assert "broken.sqlite" in str(caught.value)


def test_samples_that_are_not_used_are_named_once(export, tmp_path):
    path = changed(
        export,
        tmp_path / "sampled.sqlite",
        "CREATE TABLE NET_NIC_METRIC (start INTEGER)",
        "INSERT INTO NET_NIC_METRIC VALUES (1)",
        "CREATE TABLE COMPOSITE_EVENTS (start INTEGER)",
        "INSERT INTO COMPOSITE_EVENTS VALUES (1)",
        "CREATE TABLE SCHED_EVENTS (start INTEGER)",
    )
    notes = [note for process in read_nsys(path) for note in process.notes]
    assert notes == ["samples are there and are not used: of network cards (NET_NIC_METRIC), CPUs (COMPOSITE_EVENTS)"]


def test_a_view_in_place_of_a_table_is_not_run(export, tmp_path):
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i AS start, i AS end FROM n"
    path = changed(
        export,
        tmp_path / "hostile.sqlite",
        "DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL",
        f"CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS {endless}",
    )
    with pytest.raises(BadTrace, match="no kernels"):
        list(read_nsys(path))


def test_a_file_cut_anywhere_has_a_reason(public, tmp_path):
    whole = public.read_bytes()
    path = tmp_path / "cut.sqlite"
    for size in range(0, len(whole), 20_000):
        path.write_bytes(whole[:size])
        with pytest.raises(BadTrace):
            list(read_nsys(path))
