"""A report's data, as ClickHouse would give it, without ClickHouse."""

import json

from drumline.views.report.data import ReportData

#: A name that must arrive as text, in HTML text, in attributes and in SVG.
HOSTILE = (
    "</title></text></svg><script>alert(1)</script><img src=x onerror=alert(2)>\"' onload=alert(3) {{ 7 * 7 }} &amp;"
)


def evidence():
    return json.dumps({
        "collective": {"operation": "AllReduce", "ordinal": 3, "step": 86}, "communicator": "dd31",
        "excess_ns": {"compute_ns": -4_570_458, "copy_ns": 121_172_348, "idle_ns": 6_000},
        "longest_ns": 27_550_862, "own_ns": 646_654, "ratios": {"blocks": 1.0, "kernels": 1.25}, "steps": 5,
    })  # fmt: skip


def report_data(**changes):
    episode = {
        "rank": 3, "episode_first_step": 100, "host": "node-b", "late_with": "", "first_step": 100, "last_step": 139,
        "started": "2026-01-02 00:00:10.000000000", "ended": "2026-01-02 00:00:14.000000000", "windows": 2,
        "state": "warning", "cause": "slow_copy", "detail": "pageable", "confidence": "high",
        "evidence": evidence(), "evidence_steps": 20, "lost_s": 4.1,
        "gpu_seconds": 12.3, "lost_share": 0.051,
    }  # fmt: skip
    steps = range(200)
    return ReportData(**{
        "job": "job", "run": {"run": "r1", "started": "2026-01-02 00:00:00.000000000",
                              "ended": "2026-01-02 00:01:40.000000000",
                              "ranks": 4, "hosts": 2, "kernels": 1000, "memcpys": 10, "collectives": 40, "steps": 800,
                              "labels": {"team": "vision", "user": "ada", "model": "GPT"}},
        "other_runs": [], "since": "2026-01-02 00:00:00.000000000", "until": "2026-01-02 00:01:40.000000000",
        "length_s": 100.0, "whole": True,
        "steps": {"first": 0, "last": 199, "steps": 200, "ranks": 4, "median_ms": 500.0, "p95_ms": 520.0,
                  "steps_from": ["marker"]},
        "step_times": [{"bin": s, "median_ms": 500.0 + s, "shortest_ms": 490.0 + s, "longest_ms": 510.0 + s,
                        "begin_ms": 1767312000000 + 500 * s, "end_ms": 1767312000501 + 500 * s}
                       for s in steps],
        "windows": {
            "windows": 10, "measured": 10, "evaluated": 10, "first": 0, "last": 199, "evaluated_s": 100.0,
            "unevaluated": [(0, 19)], "steps_skipped": 0, "reason": "", "stages": "",
        },
        "episodes": [episode],
        "hangs": [],
        "stacks": [{"rank": 3, "host": "node-b", "verdict": "straggler", "first_step": 100, "last_step": 119,
                    "sampled": "2026-01-02 00:00:15.000000000", "position": 1, "is_main": 1, "thread": "MainThread",
                    "culprit_share": 0.9, "peer_share": 0.1, "peers": 1, "at": "collate (/job/train.py:88)",
                    "stack": "main (/job/train.py:9);collate (/job/train.py:88)", "finding": "python_lock",
                    "gil_wait_share": 0.75, "gil_holder": "tokenizer: encode (/job/text.py:7)"}],
        "cost": [{"rank": 3, "host": "node-b", "cause": "slow_copy", "lost_s": 4.1, "gpu_seconds": 12.3}],
        "lateness": [{"bin": b, "rank": r, "late_ms": b * r / 100} for b in range(0, 200, 20) for r in range(4)],
        "bands": [],
        "kernels": [{"name": "_Z4gemmv", "short": "gemm", "family": "gemm", "launches": 10, "gpu_s": 1.5, "p50_us": 2.0,
                     "p99_us": 9.0, "occupancy": 0.25, "limited_by": "registers", "achieved": 31.0}],
        "families": [{"family": "gemm", "launches": 10, "gpu_s": 1.5}],
        "memcpys": [{"direction": "HtoD", "source": "pageable", "target": "device", "copies": 5, "gigabytes": 1.0,
                     "gb_per_s": 9.0, "slowest_rank": 3, "slowest_gb_per_s": 8.0,
                     "most_rank": 3, "most_gigabytes": 0.6}],
        "hot_lines": [{"place": "attend (/job/model.py:31)", "gpu_s": 1.25, "percent": 62.5, "money": 0.001,
                       "kernels": 100}],
        "hot_stacks": [{"place": "main (/job/train.py:9);attend (/job/model.py:31)", "gpu_s": 1.25}],
        "stalls": [{"kernel": "gemm", "reason": "long_scoreboard", "percent": 41.5, "idle_percent": 38.1,
                    "gpu_percent": 70.0, "samples": 1000}],
        "devices": [{"host": "node-a", "gpu": 0, "rank": 0, "samples": 9, "util": 90.0, "memory_gb": 20.0,
                     "power_w": 600.0,
                     "temperature": 60, "slowest_mhz": 1500, "fastest_mhz": 1980, "ecc": 0, "xid": None}],
        "device_times": [{"second": float(s), "rank": r, "series": f"rank {r}", "util": 90.0, "power_w": 600.0,
                          "clock_mhz": 1900.0, "celsius": 60.0} for s in range(5) for r in range(2)],
        "records": {"records": 50, "dead": 0, "duplicates": 0, "dropped_rows": 0}, "price_per_gpu_hour": 0.0, **changes,
    })  # fmt: skip
