"""Benchmarks give figures and ratios; how large those are depends on the machine and is no test."""

from pathlib import Path

import numpy as np
import pytest

from drumline.bench.codec import bench_codec
from drumline.bench.figures import Figure, Report, percentiles
from drumline.bench.paced import first_delays
from drumline.bench.show import write
from drumline.bench.watch import over_time

DEMO = Path(__file__).parent.parent / "infra" / "demo" / "ddp-gpu-bound"


def test_codec_figures_stand_beside_both_baselines():
    report = bench_codec(DEMO, seconds=0.001, rows=64)
    assert {f.name.split(",")[0] for f in report.figures if f.unit == "rows/CPU s"} == {"encode", "decode"}
    for figure in report.figures:
        assert np.isfinite(figure.value)
        assert figure.ratio == pytest.approx(figure.value / figure.baseline)


def test_a_bar_is_met_from_its_side():
    assert Figure("rate", 10, "rows/s", bar=10).met
    assert not Figure("rate", 9, "rows/s", bar=10).met
    assert Figure("delay", 5, "s", bar=5, most=True).met
    assert not Figure("delay", 6, "s", bar=5, most=True).met
    assert Figure("rate", 1, "rows/s").met is None


def test_percentiles_of_nothing_are_nothing():
    assert percentiles([]) == {}
    assert percentiles([1.0, 2.0, 3.0])["p50"] == 2.0


def test_writing_again_replaces_the_section_and_leaves_the_rest(tmp_path):
    path = tmp_path / "performance.md"
    path.write_text("# Performance\n\nby hand\n")
    for value in (1.0, 2.0):
        report = Report("codec", "data", "arrays")
        report.add("encode", value, "rows/s", 4.0)
        write(report, "drumline bench codec", path)
    other = Report("sink", "data", "plain")
    write(other, "drumline bench sink", path)
    text = path.read_text()
    assert "by hand" in text
    assert text.count("## codec") == text.count("## sink") == 1
    assert "| encode | 2 rows/s | 4 | 0.5x |" in text


def test_delay_counts_from_the_first_window_wholly_inside_a_fault():
    def row(first, severity, end_s, seen_s, rank=2):
        return {
            "first_step": first, "last_step": first + 4, "of_rank": rank, "severity": severity,
            "end_ns": end_s * 10**9, "seen_ns": seen_s * 10**9,
        }  # fmt: skip

    fault = {"first_step": 5, "last_step": 14, "fault_ranks": [2]}
    early = row(0, 3, 1, 2)  # before the fault
    rows = [early, row(5, 0, 2, 3), row(10, 3, 4, 7), row(10, 3, 4, 5, rank=1)]
    assert first_delays([fault], rows, loops=1, steps=20) == [5.0]
    assert first_delays([fault], [early], loops=1, steps=20) == []
    assert first_delays([fault], [row(25, 2, 9, 10)], loops=2, steps=20) == [1.0]


def test_a_leak_shows_over_time():
    assert over_time([1000, 1000, 2000, 4000], unit=1000, slices=2) == "1, 3"
    assert over_time([7]) == "7"
    assert over_time([]) == ""
