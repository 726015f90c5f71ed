"""Matching of NCCL kernels with calls: no wrong pair, and unmatched kernels are counted."""

import pytest
from support.activity_builder import ALL_GATHER, ALL_REDUCE, GEMM, SEND_RECV, WORLD, Recorder, column

from drumline.producers.derive.nccl import kernel_names as nccl
from drumline.producers.derive.rows import derive

US = 1_000
T0 = 1_000_000


@pytest.fixture
def recorder():
    return Recorder()


def step(recorder, number, start, calls, kernels, **call):
    """A step of 100 us: calls at its start, kernels of 10 us one after the other."""
    recorder.range(f"step {number}", start, start + 90 * US)
    for i, name in enumerate(calls):
        recorder.call(name, start + (1 + i) * US, **call)
    for i, name in enumerate(kernels):
        recorder.kernel(name, start + (20 + 12 * i) * US, start + (30 + 12 * i) * US)


def operations(rows):
    return [nccl.OPERATIONS[code] for code in column(rows, "operation")]


def test_kth_kernel_in_launch_order_is_the_kth_call(recorder, tmp_path):
    step(recorder, 0, T0, ["ncclAllReduce", "ncclAllGather"], [ALL_REDUCE, ALL_GATHER])
    step(recorder, 1, T0 + 100 * US, ["ncclAllReduce", "ncclAllReduce"], [ALL_REDUCE, ALL_REDUCE])
    derived = derive(recorder.activity(tmp_path))
    assert operations(derived.collectives) == ["AllReduce", "AllGather", "AllReduce", "AllReduce"]
    assert column(derived.collectives, "step") == [0, 0, 1, 1]
    assert column(derived.collectives, "ordinal") == [0, 1, 0, 1]
    assert column(derived.collectives, "communicator") == [WORLD] * 4
    assert column(derived.collectives, "bytes") == [64] * 4
    assert column(derived.steps, "skipped") == [0, 0]


def test_launch_order_counts_not_the_order_in_which_kernels_started(recorder, tmp_path):
    recorder.range("step 0", T0, T0 + 90 * US)
    recorder.call("ncclAllGather", T0 + 1 * US, size=1)
    recorder.call("ncclAllReduce", T0 + 2 * US, size=2)
    recorder.kernel(ALL_GATHER, T0 + 50 * US, T0 + 60 * US)  # launched first, on a stream that was busy
    recorder.kernel(ALL_REDUCE, T0 + 20 * US, T0 + 30 * US)
    derived = derive(recorder.activity(tmp_path)).collectives
    assert dict(zip(column(derived, "start_ns"), column(derived, "bytes"), strict=True)) == {
        T0 + 50 * US: 1,
        T0 + 20 * US: 2,
    }


def test_a_call_without_payload_is_left_out_and_its_step_keeps_its_budget(recorder, tmp_path):
    step(recorder, 0, T0, ["ncclAllReduce"], [ALL_REDUCE])
    step(recorder, 1, T0 + 100 * US, ["ncclAllReduce"], [ALL_REDUCE], payload=False)
    step(recorder, 2, T0 + 200 * US, ["ncclAllReduce"], [ALL_REDUCE])
    derived = derive(recorder.activity(tmp_path))
    assert column(derived.collectives, "step") == [0, 2]
    assert column(derived.steps, "skipped") == [0, 0, 0]  # its kernel is known
    assert column(derived.steps, "collectives") == [1, 1, 1]
    assert (derived.counts.unattributed_collectives, derived.counts.skipped_steps) == (1, 0)


def test_where_one_of_several_has_no_payload_the_others_of_its_kind_are_left_out_too(recorder, tmp_path):
    recorder.range("step 0", T0, T0 + 90 * US)
    for i, payload in enumerate((True, False, True)):
        recorder.call("ncclAllReduce", T0 + (1 + i) * US, communicator=7 + i, payload=payload)
        recorder.kernel(ALL_REDUCE, T0 + (20 + 12 * i) * US, T0 + (30 + 12 * i) * US)
    recorder.call("ncclAllGather", T0 + 5 * US)
    recorder.kernel(ALL_GATHER, T0 + 60 * US, T0 + 70 * US)
    assert operations(derive(recorder.activity(tmp_path)).collectives) == ["AllGather"]


def test_ordinals_count_per_communicator(recorder, tmp_path):
    recorder.range("step 0", T0, T0 + 90 * US)
    for i, communicator in enumerate((7, 9, 7, 9, 9)):
        recorder.call("ncclAllReduce", T0 + (1 + i) * US, communicator=communicator)
        recorder.kernel(ALL_REDUCE, T0 + (20 + 12 * i) * US, T0 + (30 + 12 * i) * US)
    derived = derive(recorder.activity(tmp_path)).collectives
    assert column(derived, "ordinal") == [0, 0, 1, 1, 2]


def test_a_group_of_calls_is_one_kernel(recorder, tmp_path):
    recorder.range("step 0", T0, T0 + 90 * US)
    recorder.range("ncclGroupStart", T0 + 1 * US, T0 + 1 * US + 10, domain="NCCL")
    recorder.call("ncclSend", T0 + 2 * US, size=100)
    recorder.call("ncclRecv", T0 + 3 * US, size=30)
    recorder.range("ncclGroupEnd", T0 + 4 * US, T0 + 5 * US, domain="NCCL")
    recorder.call("ncclAllReduce", T0 + 6 * US, size=5)
    recorder.kernel(SEND_RECV, T0 + 20 * US, T0 + 30 * US)
    recorder.kernel(ALL_REDUCE, T0 + 40 * US, T0 + 50 * US)
    derived = derive(recorder.activity(tmp_path))
    assert operations(derived.collectives) == ["SendRecv", "AllReduce"]
    assert column(derived.collectives, "bytes") == [130, 5]
    assert column(derived.steps, "skipped") == [0]


def test_a_group_over_two_communicators_is_left_unattributed(recorder, tmp_path):
    recorder.range("step 0", T0, T0 + 90 * US)
    recorder.range("ncclGroupStart", T0 + 1 * US, T0 + 1 * US + 10, domain="NCCL")
    recorder.call("ncclSend", T0 + 2 * US, communicator=7)
    recorder.call("ncclRecv", T0 + 3 * US, communicator=9)
    recorder.range("ncclGroupEnd", T0 + 4 * US, T0 + 5 * US, domain="NCCL")
    recorder.kernel(SEND_RECV, T0 + 20 * US, T0 + 30 * US)
    derived = derive(recorder.activity(tmp_path))
    assert derived.collectives.rows == 0
    assert column(derived.steps, "skipped") == [0]


@pytest.mark.parametrize("lost", ["ncclGroupStart", "ncclGroupEnd"])
def test_a_lost_end_of_a_group_spoils_its_own_step_only(recorder, tmp_path, lost):
    for number in range(3):
        start = T0 + number * 100 * US
        recorder.range(f"step {number}", start, start + 90 * US)
        for i, name in enumerate(("ncclGroupStart", "ncclSend", "ncclRecv", "ncclGroupEnd", "ncclAllReduce")):
            if "Group" in name and not (number == 1 and name == lost):
                recorder.range(name, start + (1 + i) * US, start + (1 + i) * US + 10, domain="NCCL")
            elif "Group" not in name:
                recorder.call(name, start + (1 + i) * US)
        recorder.kernel(SEND_RECV, start + 20 * US, start + 30 * US)
        recorder.kernel(ALL_REDUCE, start + 40 * US, start + 50 * US)
    derived = derive(recorder.activity(tmp_path))
    rows = zip(operations(derived.collectives), column(derived.collectives, "step"), strict=True)
    assert [step for operation, step in rows if operation == "AllReduce"] == [0, 1, 2]
    assert column(derived.steps, "collectives") == [1, 1, 1]  # the SendRecvs are ambiguous


def test_a_lost_kernel_spoils_only_its_kind_of_operation(recorder, tmp_path):
    step(recorder, 0, T0, ["ncclAllReduce", "ncclAllGather"], [ALL_REDUCE, ALL_GATHER])
    step(recorder, 1, T0 + 100 * US, ["ncclAllReduce"], [])  # its kernel record is gone
    step(recorder, 2, T0 + 200 * US, ["ncclAllGather"], [ALL_GATHER])
    derived = derive(recorder.activity(tmp_path))
    assert operations(derived.collectives) == ["AllGather", "AllGather"]
    assert column(derived.collectives, "step") == [0, 2]
    assert column(derived.steps, "skipped") == [1, 1, 1]  # which AllReduce is which, so when step 2 begins
    assert derived.counts.unattributed_collectives == 1


def test_equal_counts_with_other_operations_are_not_believed(recorder, tmp_path):
    step(recorder, 0, T0, ["ncclAllReduce", "ncclAllGather"], [ALL_GATHER, ALL_GATHER])
    derived = derive(recorder.activity(tmp_path))
    assert derived.collectives.rows == 0
    assert column(derived.steps, "skipped") == [1]


def test_a_kernel_that_starts_before_its_call_is_another_ones(recorder, tmp_path):
    recorder.kernel(ALL_REDUCE, T0, T0 + 10 * US)  # attached in the middle: its call was not seen
    step(recorder, 0, T0 + 1_000 * US, ["ncclAllReduce"], [])
    derived = derive(recorder.activity(tmp_path))
    assert derived.collectives.rows == 0
    assert derived.counts.unattributed_collectives == 1


def test_kernels_of_a_graph_have_no_call_of_their_own(recorder, tmp_path):
    step(recorder, 0, T0, ["ncclAllReduce"], [ALL_REDUCE])
    recorder.kernel(ALL_REDUCE, T0 + 200 * US, T0 + 210 * US, graph_id=4)
    derived = derive(recorder.activity(tmp_path))
    assert derived.collectives.rows == 1
    assert column(derived.steps, "skipped") == [0]


def test_covered_is_the_overlap_with_own_kernels_and_copies(recorder, tmp_path):
    recorder.range("step 0", T0, T0 + 90 * US)
    recorder.call("ncclAllReduce", T0 + 1 * US)
    recorder.kernel(ALL_REDUCE, T0 + 20 * US, T0 + 40 * US)
    recorder.kernel(GEMM, T0 + 10 * US, T0 + 25 * US)
    recorder.copy(1, T0 + 24 * US, T0 + 28 * US)
    recorder.memset(T0 + 35 * US, T0 + 60 * US)
    derived = derive(recorder.activity(tmp_path)).collectives
    assert column(derived, "covered_ns") == [(28 - 20) * US + (40 - 35) * US]


def test_nothing_recorded_but_kernels(recorder, tmp_path):
    recorder.kernel(GEMM, T0, T0 + 10)
    derived = derive(recorder.activity(tmp_path))
    assert (derived.kernels.rows, derived.collectives.rows, derived.steps.rows, derived.ranges.rows) == (1, 0, 0, 0)


@pytest.mark.parametrize(
    ("name", "operation"),
    [
        (ALL_REDUCE, "AllReduce"),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*)", "SendRecv"),
        ("_Z43ncclSymkDevKernel_AllReduce_RSxLD_AGxST_sum16ncclSymkDevWorkArgs", "AllReduce"),
        ("_Z42ncclDevKernel_ReduceScatter_Sum_f32_RING_LL24x", "ReduceScatter"),
        ("_Z23ncclDevKernel_Generic24x", ""),
    ],
)
def test_kernel_names_of_all_families_are_nccls(name, operation):
    assert nccl.is_kernel([name]).tolist() == [True]
    assert [nccl.OPERATIONS[c] for c in nccl.kernel_operations([name])] == [operation]


def test_names_that_only_mention_nccl_are_not():
    assert not nccl.is_kernel([GEMM, "_Z4fooP24ncclDevKernelArgsStorageILm4096EE", "ncclish"]).any()


def test_payloads_shorter_than_two_words_are_no_collectives():
    data = bytes(range(24)) + b"\1" * 8
    communicator, size, peer, valid = nccl.payload_fields(data, [0, 24, 32])
    assert peer.tolist() == [0x13121110, -1]
    assert valid.tolist() == [True, False]
    assert communicator.tolist() == [0x0706050403020100, 0]
    assert size.tolist() == [0x0F0E0D0C0B0A0908, 0]
