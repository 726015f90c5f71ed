"""CUPTI buffers, byte for byte as an H200 wrote them, against what was counted when they were recorded."""

import ctypes
import os

import numpy as np
import pytest
from support.fakes.cupti import SIZES, FakeCupti, RawBuffer, record

from drumline.producers.activity.activity import Activity
from drumline.producers.decoder import cupti_layout
from drumline.producers.decoder.buffer_reader import BufferReader
from drumline.producers.decoder.cupti_decode import EPOCH_NS, UNFINISHED, Decoder, UnknownSize, find_records
from drumline.producers.decoder.remote_memory import RemoteMemory
from drumline.producers.decoder.string_cache import StringCache
from drumline.producers.derive.nccl import kernel_names as nccl
from drumline.producers.derive.rows import derive
from drumline.producers.ipc.buffer_pool import DONE, HEADER_BYTES, STATE, BufferPool

SIZE_TABLE = [SIZES.get(kind, 0) for kind in range(64)]


@pytest.fixture(scope="module", params=["ddp_start", "ddp_steps"])
def raw(request):
    return RawBuffer(request.param).relocate()


def decoded(raw, sizes=SIZE_TABLE):
    return Decoder(RemoteMemory(os.getpid())).decode(find_records(raw.data, sizes), sizes)


def test_every_record_is_found(raw):
    counted = {int(kind): count for kind, count in raw.about["records"].items()}
    records = find_records(raw.data, SIZE_TABLE)
    assert {kind: len(at) for kind, at in records.positions.items()} == counted
    out = decoded(raw)
    assert out.kernels.rows == counted[10]
    assert out.copies.rows == counted.get(1, 0) + counted.get(2, 0)
    assert out.markers.rows == counted[12]
    assert not +out.invalid
    assert not out.unknown


def test_names_are_read_from_the_recorded_process(raw):
    out = decoded(raw)
    strings = set(raw.about["strings"].values())
    used = {out.kernels.dictionaries["names"][i] for i in np.unique(out.kernels["name"])}
    assert used
    assert used <= strings
    begins = (out.markers["flags"] & 2) != 0
    labels = {out.markers.dictionaries["names"][i] for i in np.unique(out.markers["name"][begins])}
    assert labels
    assert labels <= strings


def test_columns_make_sense(raw):
    kernels = decoded(raw).kernels
    first, last = raw.span()
    assert (kernels["start_ns"] >= first).all()
    assert ((kernels["start_ns"] + kernels["duration_ns"].astype(np.int64)) <= last).all()
    assert (kernels["block_x"] > 0).all()
    assert (kernels["grid_x"] > 0).all()
    assert len(np.unique(kernels["correlation"])) == kernels.rows
    assert (kernels["device"] == 0).all()


def test_payloads_name_communicators_and_sizes(raw):
    out = decoded(raw)
    recorded = [p["payload_hex"] for p in raw.about["payloads"].values() if p["size"] >= 16]
    expected = {
        (int.from_bytes(b[:8], "little"), int.from_bytes(b[8:16], "little")) for b in map(bytes.fromhex, recorded)
    }
    records = set(zip(out.payloads["communicator"].tolist(), out.payloads["bytes"].tolist(), strict=True))
    assert records
    assert records <= expected


def test_a_decoded_buffer_derives_to_attributed_collectives():
    raw = RawBuffer("ddp_steps").relocate()
    out = decoded(raw)
    records = derive(Activity(kernels=out.kernels, copies=out.copies, markers=out.markers, payloads=out.payloads))
    assert nccl.is_kernel(out.kernels.dictionaries["names"]).any()
    assert records.ranges.rows > 0


def test_a_kind_of_unknown_size_stops_with_its_name(raw):
    sizes = list(SIZE_TABLE)
    sizes[cupti_layout.MEMSET] = 0
    with pytest.raises(UnknownSize) as failure:
        find_records(raw.data, sizes)
    assert failure.value.kind == cupti_layout.MEMSET


def test_records_that_cupti_had_not_finished_are_counted_and_what_is_behind_them_is_read():
    raw = RawBuffer("ddp_steps").relocate()
    halves = raw.data.view("<u4")
    for kind, at in ((cupti_layout.KERNEL, 5), (cupti_layout.KERNEL, -1), (cupti_layout.MEMSET, 0)):
        halves[raw.of(kind)[at] // 4] |= UNFINISHED
    out = decoded(raw)
    counted = raw.about["records"]
    assert +out.invalid == {"kernels": 3}
    assert out.kernels.rows == counted["10"] - 2
    assert out.copies.rows == counted["2"] - 1
    assert out.markers.rows == counted["12"]
    assert not out.unknown


def test_the_record_before_an_unfinished_one_does_not_pass_for_as_long_as_both(raw):
    first = next(at for kind, at in raw.positions if kind == cupti_layout.MARKER)
    marker = raw.data[first : first + SIZES[cupti_layout.MARKER]]
    kernel = record(cupti_layout.KERNEL)
    kernel.view("<u4")[0] |= UNFINISHED
    memory = np.concatenate([marker, kernel])
    assert FakeCupti().bound().record_sizes(memory.ctypes.data, len(memory)) == {}
    assert FakeCupti().bound().record_sizes(memory.ctypes.data, len(marker)) == {cupti_layout.MARKER: len(marker)}


def test_a_size_from_the_future_gives_no_rows_of_that_kind_but_all_others(raw):
    longer = 272
    chunks = [
        raw.data[at : at + SIZES[kind]].tobytes() + bytes(longer - 216 if kind == cupti_layout.KERNEL else 0)
        for kind, at in raw.positions
    ]
    sizes = list(SIZE_TABLE)
    sizes[cupti_layout.KERNEL] = longer
    records = find_records(np.frombuffer(b"".join(chunks), np.uint8), sizes)
    out = Decoder(RemoteMemory(os.getpid())).decode(records, sizes)
    assert out.kernels.rows == 0
    assert out.unknown == {cupti_layout.KERNEL: raw.about["records"]["10"]}
    assert out.markers.rows == raw.about["records"]["12"]


def test_records_whose_times_were_never_filled_in_are_counted_not_kept():
    raw = RawBuffer("ddp_steps").relocate()
    fields = raw.data.view("<u8")
    at = raw.field(cupti_layout.KERNEL, 24, "<u8")[:5]
    fields[at] = 0  # end
    fields[raw.field(cupti_layout.KERNEL, 16, "<u8")[7]] = 0  # start
    out = decoded(raw)
    assert +out.invalid == {"kernels": 6}
    assert out.kernels.rows == raw.about["records"]["10"] - 6


def test_launches_whose_times_were_never_filled_in_are_counted_too():
    now = EPOCH_NS + 1
    data = np.concatenate(
        [record(cupti_layout.DRIVER, start=start, end=now + 9, correlation_id=7) for start in (now, 0)]
    )
    pool = BufferPool(2, 4096)
    pool.sizes[cupti_layout.DRIVER] = SIZES[cupti_layout.DRIVER]
    begin, state = HEADER_BYTES, STATE
    pool.memory[begin : begin + len(data)] = data.tobytes()
    pool.header[state], pool.header[state + 1] = DONE, len(data)
    reader = BufferReader(pool, os.getpid(), {})
    assert reader.read(0, now).launched.rows == 1
    assert (reader.records["launches"], reader.records["invalid_launches"]) == (1, 1)


def test_a_pointer_that_means_something_else_now_is_read_again():
    memory = ctypes.create_string_buffer(b"first kernel\0", 64)
    cache = StringCache(RemoteMemory(os.getpid()))
    pointer = np.array([ctypes.addressof(memory)] * 3, np.uint64)
    assert [cache.strings[i] for i in cache.indices(pointer)] == ["first kernel"] * 3
    memory.value = b"second"
    assert cache.strings[cache.indices(pointer)[0]] == "second"
    memory.value = b"second one"
    assert cache.strings[cache.indices(pointer)[0]] == "second one"


def test_pointers_that_lead_nowhere_are_counted_and_harm_nothing():
    memory = ctypes.create_string_buffer(b"good\0", 8)
    cache = StringCache(RemoteMemory(os.getpid()))
    pointers = np.array([8, ctypes.addressof(memory), 0, 1 << 46, ctypes.addressof(memory)], np.uint64)
    assert [cache.strings[i] for i in cache.indices(pointers)] == ["", "good", "", "", "good"]
    assert cache.unreadable == 2


def test_long_strings_are_read_to_their_end():
    text = b"k" * 5000
    memory = ctypes.create_string_buffer(text)
    cache = StringCache(RemoteMemory(os.getpid()))
    assert cache.strings[cache.indices(np.array([ctypes.addressof(memory)], np.uint64))[0]] == text.decode()


def test_a_string_without_an_end_is_cut_visibly_and_counted_once():
    memory = ctypes.create_string_buffer(b"k" * 20_000)
    cache = StringCache(RemoteMemory(os.getpid()))
    for _ in range(2):
        index = cache.indices(np.array([ctypes.addressof(memory)], np.uint64))[0]
        assert cache.strings[index] == "k" * 16_384 + "…"
    assert cache.truncated == 1


def test_copies_between_gpus_are_rows_while_recording_is_on_and_counted_while_it_is_off():
    now = 1_700_000_000_000_000_000
    values = {"copy_kind": 10, "src_kind": 3, "dst_kind": 3, "bytes": 1 << 20, "device_id": 1, "stream_id": 7,
              "correlation_id": 5, "flags_": 1, "start": now, "end": now + 9_000}  # fmt: skip
    data = np.concatenate([record(cupti_layout.MEMCPY, copy_kind=1, start=now, end=now + 1),
                           record(cupti_layout.PEER_COPY, **values)])  # fmt: skip
    sizes = [SIZES.get(kind, 0) for kind in range(64)]
    decoder, records = Decoder(RemoteMemory(os.getpid())), find_records(data, sizes)
    out = decoder.decode(records, sizes)
    assert (out.copies["kind"].tolist(), out.unknown) == ([1, 10], {})
    row = {
        name: int(out.copies[name][1])
        for name in ("bytes", "duration_ns", "stream", "correlation", "is_async", "device")
    }
    assert row == {"bytes": 1 << 20, "duration_ns": 9_000, "stream": 7, "correlation": 5, "is_async": 1, "device": 1}
    out = decoder.decode(records, sizes, is_recording=False)
    assert (out.copies["kind"].tolist(), out.unknown) == ([1], {cupti_layout.PEER_COPY: 1})


def test_layouts_are_those_of_cupti_python():
    cupti = pytest.importorskip("cupti.cupti")
    names = {"kernel": cupti_layout.KERNEL, "memcpy": 1, "memset": 2, "marker_data": 13, "marker": 12, "api": 4}
    names["memcpy_pto_p"] = cupti_layout.PEER_COPY
    compared = 0
    for name in dir(cupti):
        if not name.startswith("activity_") or not name.endswith("_dtype"):
            continue
        struct = name.removeprefix("activity_").removesuffix("_dtype").rstrip("0123456789")
        dtype = getattr(cupti, name)
        if struct not in names or dtype.itemsize not in cupti_layout.LAYOUTS[names[struct]].sizes:
            continue
        for field, (kind, offset) in cupti_layout.LAYOUTS[names[struct]].fields.items():
            if field == "thread_":  # of the first of the kinds of objects
                ids, at = dtype.fields["object_id"]
                assert ids.fields["pt"][0].fields["thread_id"][1] + ids.fields["pt"][1] + at == offset
                continue
            assert dtype.fields[field][1] == offset, (name, field)
            if dtype.fields[field][0].names is None:
                assert dtype.fields[field][0].itemsize == np.dtype(kind).itemsize, (name, field)
        compared += 1
    assert compared
