"""A counter of NVML stands in one table: the schema, its bounds and what is read agree with it."""

import json
from operator import attrgetter

import numpy as np
import pynvml
import pytest

from drumline.producers.nvml.gpm import RATES
from drumline.producers.nvml.readings import LINK_COUNTERS, PCIE_CALLS
from drumline.schemas import release
from drumline.schemas.bounds.limits import bounds
from drumline.schemas.counters import BY_NAME, COUNTERS, BoundKind, Call, Counter, FieldValue, GpmMetric
from drumline.schemas.model import AVRO, model
from drumline.schemas.topics import Topic

#: What drumline knows of a GPU itself.
NO_COUNTER = {"time_ns", "job_memory", "job_util_sm", "lost"}


def test_every_column_of_a_sample_is_a_counter_with_its_text_and_type():
    columns = {column.name: column for column in model(Topic.DEVICE).columns}
    assert set(columns) - NO_COUNTER == set(BY_NAME)
    assert len(BY_NAME) == len(COUNTERS)
    docs = {field["name"]: field["doc"] for field in json.loads(model(Topic.DEVICE).text)["fields"]}
    assert {name: docs[name] for name in BY_NAME} == {name: counter.doc for name, counter in BY_NAME.items()}
    floats = {name for name in BY_NAME if columns[name].dtype == np.dtype("<f8")}
    assert floats == {counter.name for counter in COUNTERS if isinstance(counter.source, GpmMetric)}


def test_a_counter_that_a_gpu_lacks_is_within_its_bound():
    limits = bounds(Topic.DEVICE)
    assert {counter.kind for counter in COUNTERS} == set(BoundKind)
    assert {name for name in BY_NAME if limits[name].low != -1} == set()


@pytest.mark.parametrize("counter", [c for c in COUNTERS if c.source], ids=attrgetter("name"))
def test_nvml_has_the_function_and_the_constants_of_a_counter(counter):
    match counter.source:
        case Call(function, constants):
            names = (function, *constants)
        case FieldValue(name):
            names = (f"NVML_FI_DEV_{name}",)
        case GpmMetric(name):
            names = (f"NVML_GPM_METRIC_{name}",)
    assert [name for name in names if not hasattr(pynvml, name)] == []


def test_counters_without_a_source_are_those_that_the_agent_reads_with_code_of_its_own():
    without = {counter.name for counter in COUNTERS if counter.source is None}
    assert {*RATES, *PCIE_CALLS, *LINK_COUNTERS} < without
    pairs = {"util_gpu", "util_memory", "memory_used", "memory_total"}
    links = {"nvlink_active", "nvlink_crc_errors", "nvlink_replays", "nvlink_recoveries"}
    assert without - {*RATES, *LINK_COUNTERS} == pairs | links | {"xid", "processes", "fabric_state", "vgpu_license"}


def test_a_new_counter_comes_into_the_schema_by_the_release(tmp_path, monkeypatch):
    text = (AVRO / f"{Topic.DEVICE}.avsc").read_text()
    (tmp_path / f"{Topic.DEVICE}.avsc").write_text(text)
    release.write_counters(tmp_path)
    assert (tmp_path / f"{Topic.DEVICE}.avsc").read_text() == text, "run python -m drumline.schemas.release --add"
    new = Counter("util_jpeg", "JPEG decoder busy; %", Call("nvmlDeviceGetJpgUtilization"), BoundKind.PERCENT)
    monkeypatch.setattr(release, "COUNTERS", (*COUNTERS, new))
    release.write_counters(tmp_path)
    schema = json.loads((tmp_path / f"{Topic.DEVICE}.avsc").read_text())
    assert schema["fields"][-1]["name"] == "util_jpeg"
    assert schema["fields"][-1]["doc"] == "JPEG decoder busy; %; -1 = not supported"
    assert schema["fields"][:-1] == json.loads(text)["fields"]
