"""Kernels, copies, steps and collectives of one file of PyTorch's profiler."""

from pathlib import Path

import numpy as np
import pytest
from support.kineto_files import BASE_NS, event, kernel, trace_file

from drumline.producers.activity.activity import MEMSET
from drumline.producers.derive.nccl.kernel_names import OPERATIONS
from drumline.producers.derive.rows import derive
from drumline.producers.foreign.kineto.kineto_process import read_kineto
from drumline.producers.foreign.kineto.nccl_operations import operation_code

DATA = Path(__file__).parents[3] / "data" / "foreign"
GROUP = {"Process Group Name": "tp", "Process Group Ranks": "[0, 1]"}


def read(tmp_path, events, **more):
    path = tmp_path / "t.json"
    path.write_text(trace_file(events, **more))
    return read_kineto(path)


def operations(trace):
    rows = derive(trace.activity).collectives
    return [rows.dictionaries["operations"][i] for i in rows["operation"]]


def test_times_are_ns_since_the_epoch(tmp_path):
    trace = read(tmp_path, kernel("gemm", 1_234_567, 89, 5))
    assert trace.activity.kernels["start_ns"].tolist() == [BASE_NS + 1_234_567]
    assert trace.activity.kernels["duration_ns"].tolist() == [89]


def test_large_times_of_old_files_keep_their_microsecond(tmp_path):
    event = '{"ph": "X", "cat": "Kernel", "name": "k", "ts": 1694128201422243, "dur": 3}'
    (tmp_path / "t.json").write_text(f'{{"schemaVersion": 1, "traceEvents": [{event}]}}')
    assert read_kineto(tmp_path / "t.json").activity.kernels["start_ns"].tolist() == [1694128201422243000]


def test_copies_have_their_direction_and_memory(tmp_path):
    events = [
        event("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", 1_000, 10, bytes=64, stream=7, correlation=1),
        event("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", 2_000, 10, bytes=32, stream=7, correlation=2),
        event("gpu_memset", "Memset (Device)", 3_000, 10, bytes=16, stream=7, correlation=3),
    ]
    copies = read(tmp_path, [*events, *kernel("k", 50_000, 1, 4)]).activity.copies
    kinds = zip(copies["kind"].tolist(), copies["src_kind"].tolist(), copies["dst_kind"].tolist(), strict=True)
    assert list(kinds) == [(1, 1, 3), (2, 3, 2), (MEMSET, 0, 3)]
    assert copies["bytes"].tolist() == [64, 32, 16]


@pytest.mark.parametrize(
    ("name", "operation"),
    [
        ("allreduce", "AllReduce"),
        ("all_reduce", "AllReduce"),
        ("allreduce_coalesced", "AllReduce"),
        ("barrier", "AllReduce"),
        ("_allgather_base", "AllGather"),
        ("all_gather", "AllGather"),
        ("_reduce_scatter_base", "ReduceScatter"),
        ("reduce_scatter_tensor_coalesced", "ReduceScatter"),
        ("all_to_allv", "AllToAll"),
        ("alltoall_base", "AllToAll"),
        ("broadcast", "Broadcast"),
        ("reduce", "Reduce"),
        ("gather", "Gather"),
        ("scatter", "Scatter"),
        ("send 0->1", "Send"),
        ("recv 0<-1", "Recv"),
        ("coalesced", ""),
        ("", ""),
    ],
)
def test_operations_of_pytorch_are_those_of_nccl(name, operation):
    assert OPERATIONS[operation_code(name)] == operation


def test_a_step_has_the_time_for_which_the_host_waited_for_the_gpu(tmp_path):
    events = [
        event("user_annotation", "ProfilerStep#4", 0, 5_000_000),
        event("user_annotation", "ProfilerStep#5", 5_000_000, 5_000_000),
        event("cuda_runtime", "cudaStreamSynchronize", 1_000_000, 400_000, correlation=3),
        event("cuda_runtime", "cudaDeviceSynchronize", 1_200_000, 300_000, tid=2, correlation=4),
        *kernel("k", 2_000_000, 10, 5),
    ]
    steps = derive(read(tmp_path, events).activity).steps
    assert steps["step"].tolist() == [4, 5]
    assert steps["sync_ns"].tolist() == [500_000, 0]
    assert steps["load_ns"].tolist() == steps["gc_ns"].tolist() == [-1, -1]


def test_a_kernel_that_states_its_operation_is_an_all_to_all(tmp_path):
    args = {"Collective name": "all_to_allv", "In msg nelems": 10, "dtype": "BFloat16", **GROUP}
    trace = read(tmp_path, kernel("ncclDevKernel_SendRecv(x)", 100_000, 50, 7, **args))
    assert operations(trace) == ["AllToAll"]
    assert trace.activity.payloads["bytes"].tolist() == [20]
    assert trace.notes == ()


def test_an_annotation_around_the_launch_states_the_operation(tmp_path):
    events = [
        *kernel("ncclKernel_SendRecv_RING(x)", 100_000, 50, 7),
        event("user_annotation", "nccl:all_to_all", 85_000, 10_000),
        event("user_annotation", "nccl:all_reduce", 85_000, 10_000, tid=2),  # another thread
    ]
    trace = read(tmp_path, events)
    assert operations(trace) == ["AllToAll"]
    assert "process groups are not named" in trace.notes[0]


def test_an_operator_around_the_launch_states_the_process_group(tmp_path):
    events = [
        *kernel("ncclKernel_AllReduce_RING(x)", 100_000, 50, 7),
        *kernel("ncclKernel_AllReduce_RING(x)", 200_000, 50, 8, **{"Collective name": "allreduce", **GROUP}),
        event("cpu_op", "record_param_comms", 80_000, 20_000, **{"Collective name": "allreduce", **GROUP}),
        event("user_annotation", "nccl:all_reduce", 85_000, 10_000),
    ]
    communicators = read(tmp_path, events).activity.payloads["communicator"].tolist()
    assert communicators[0] == communicators[1]


def test_a_kernel_is_right_where_an_annotation_contradicts_it(tmp_path):
    events = [*kernel("ncclDevKernel_Broadcast_RING(x)", 100_000, 50, 7, **{"Collective name": "all_gather", **GROUP})]
    assert operations(read(tmp_path, events)) == ["Broadcast"]


def test_a_group_has_one_communicator_on_all_ranks_and_another_than_its_namesake(tmp_path):
    def communicator(ranks, **more):
        args = {"Collective name": "allreduce", "Process Group Name": "3", "Process Group Ranks": ranks}
        events = kernel("ncclDevKernel_AllReduce(x)", 100_000, 50, 7, **args)
        return read(tmp_path, events, **more).activity.payloads["communicator"].tolist()

    assert communicator("[0, 2]") == communicator([0, 2]) != communicator("[1, 3]")
    groups = {"rank": 0, "world_size": 64, "pg_config": [{"pg_name": "3", "ranks": list(range(64))}]}
    shortened = communicator("[0, 1, ..., 63]", distributedInfo=groups)
    assert shortened == communicator("", distributedInfo=groups)


def test_kernels_of_one_graph_launch_are_collectives_each(tmp_path):
    args = {"Collective name": "allreduce", **GROUP}
    events = [
        event("cuda_runtime", "cudaGraphLaunch", 90_000, 1_000, correlation=7),
        *(kernel("ncclDevKernel_AllReduce(x)", 100_000 + 1_000 * i, 50, 7, **args)[1] for i in range(3)),
    ]
    assert operations(read(tmp_path, events)) == ["AllReduce"] * 3


def test_all_collectives_of_the_published_step_are_recognised():
    for rank in range(8):
        trace = read_kineto(DATA / "dlrm" / f"worker{rank}.json.gz")
        derived = derive(trace.activity)
        assert (trace.rank, trace.world_size, trace.gpu_model) == (rank, 8, "Tesla V100-SXM2-32GB")
        assert sorted(operations(trace)) == ["AllReduce"] * 3 + ["AllToAll"] * 5
        assert derived.steps["step"].tolist() == [10]
        assert np.all(derived.collectives["step"] == 10)
        assert derived.counts.unattributed_collectives == 0
