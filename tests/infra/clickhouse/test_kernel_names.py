"""Kernel names: distinct short forms, families by the documented rules, hostile names bounded."""

import pyarrow.parquet as pq
import pytest
from support import recordings

from drumline.infra.clickhouse.demangle import demangled
from drumline.infra.clickhouse.kernel_names import FAMILIES, OTHER, kernel_name

ELEMENTWISE = (
    "_ZN2at6native29vectorized_elementwise_kernelILi8EZNS0_25bfloat16_copy_kernel_cudaERNS_18TensorIteratorBaseEEUl"
    "fE_St5arrayIPcLm2EEEEviT0_T1_"
)
LAYER_NORM = (
    "_ZN2at6native53_GLOBAL__N__21739cd4_20_layer_norm_kernel_cu_9c5ada8a28vectorized_layer_norm_kernelIffLb0EEEviT"
    "0_PKT_S6_S6_PS3_S7_PS4_"
)
REDUCE = (
    "_ZN2at6native13reduce_kernelILi128ELi4ENS0_8ReduceOpIfNS0_14func_wrapper_tIfZNS0_11sum_functorIfffEclERNS_14Te"
    "nsorIteratorEEUlffE_EEjfLi4ELi4EEEEEvT1_"
)
SORT = (
    "_ZN14at_cuda_detail3cub6detail10radix_sort33DeviceRadixSortExclusiveSumKernelINS1_5radix10policy_hubIlN2at4cud"
    "a3cub6detail10OpaqueTypeILi8EEEyE10Policy1000EyEEvPT0_"
)
NCCL = "_Z39ncclDevKernel_AllReduce_Sum_f32_RING_LL24ncclDevKernelArgsStorageILm4096EE"


@pytest.mark.parametrize(
    ("name", "short", "family"),
    [
        (ELEMENTWISE, "vectorized_elementwise_kernel(bfloat16_copy)", "copy"),
        (LAYER_NORM, "vectorized_layer_norm_kernel", "normalisation"),
        (REDUCE, "reduce_kernel(sum)", "reduction"),
        (SORT, "DeviceRadixSortExclusiveSumKernel", "other"),
        (NCCL, "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "nccl"),
    ],
)
def test_short_form_and_family(name, short, family):
    result = kernel_name(name)
    assert (result.short, result.family) == (short, family)


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT", "gemm"),
        ("triton_poi_fused_gelu_view_2", "elementwise"),
        ("triton_per_fused_add_native_layer_norm_view_4", "normalisation"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_f16", "attention"),
        ("sm80_xmma_fprop_implicit_gemm_indexed_tf32f32", "convolution"),
        ("my_own_kernel", "other"),
        ("dtype_conversion_kernel", "other"),
        ("convert_to_bf16", "other"),
        ("depthwise_conv2d_forward", "convolution"),
        ("", "other"),
    ],
)
def test_plain_names_are_their_own_short_form(name, family):
    result = kernel_name(name)
    assert (result.short, result.family) == (name, family)


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("void deep_ep::internode_ll::dispatch<true, 7168>(void*)", "communication"),
        ("void deep_ep::intranode::notify_dispatch<8>(int const*)", "communication"),
        ("void vllm::cross_device_reduce_1stage<__half, 8>(RankData*)", "communication"),
        ("void one_shot_all_reduce_kernel<float, 16, 8>(float**)", "communication"),
        ("multimem_all_reduce_kernel<c10::BFloat16, 16>", "communication"),
        ("void tensorrt_llm::kernels::oneShotAllReduceKernel<__half, 8>(AllReduceParams)", "communication"),
        (
            "flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<__nv_bfloat16, 8>",
            "communication",
        ),
        ("void moeA2ADispatchKernel<int>(int)", "communication"),
        ("nvshmemi_barrier_kernel", "communication"),
        ("ncclSymkDevKernel_AllReduce", "nccl"),
        ("dispatch_to_copy_kernel", "copy"),
    ],
)
def test_communication_of_other_libraries_is_a_family(name, family):
    assert kernel_name(name).family == family


@pytest.mark.parametrize("name", [ELEMENTWISE, LAYER_NORM, REDUCE, SORT, NCCL])
def test_a_demangled_name_gets_what_the_mangled_one_gets(name):
    [plain] = demangled([name])
    assert "::" in plain or plain.startswith("nccl")
    assert kernel_name(plain) == kernel_name(name)


def test_every_recorded_kernel_but_sorting_and_scanning_has_a_family_and_its_short_form_is_readable():
    for folder in recordings.folders().values():
        for name in set(pq.read_table(folder / "kernel.parquet", columns=["name"])["name"].to_pylist()):
            result = kernel_name(name)
            assert result.family != OTHER or "cub" in name, name
            assert result.family in {family for family, _ in FAMILIES} | {OTHER}
            assert not result.short.startswith("_Z")
            assert result.short


@pytest.mark.parametrize(
    "name", ["_Z99abc", "_ZN", "_Z", "_ZN3", "_ZN1a" * 3000, "_Z" + "9" * 5000, "<", "()", "x" * 10**6]
)
def test_a_broken_name_is_cut_not_an_error(name):
    assert len(kernel_name(name).short) <= 8192


def test_a_name_that_would_fill_the_memory_stays_mangled_and_the_next_is_demangled():
    digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    bomb = "_Z1fI1XI1aS0_E"
    for i in range(2, 62):  # each argument is a pair of the one before
        back = "S_" if i == 0 else f"S{(digits[(i - 1) // 36] if i > 36 else '') + digits[(i - 1) % 36]}_"
        bomb += f"S_I{back}{back}E"
    bomb += "EvT_"
    first, second, third, plain = demangled([NCCL, bomb, LAYER_NORM, "plain"])
    assert first.startswith("ncclDevKernel_AllReduce")
    assert second == bomb
    assert "layer_norm_kernel" in third
    assert plain == "plain"
    assert kernel_name(bomb).short == "f"
