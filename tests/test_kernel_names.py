from drumline.infra.kernel_names import short_kernel_name


def test_innermost_identifier_of_a_nested_name():
    assert (
        short_kernel_name("_ZN2at6native29vectorized_elementwise_kernelILi8EZNS0_25bfloat16_copy_kernel_cudaERNS_E")
        == "vectorized_elementwise_kernel"
    )


def test_anonymous_namespace_with_digits_in_its_name():
    mangled = "_ZN2at6native53_GLOBAL__N__21739cd4_20_layer_norm_kernel_cu_9c5ada8a28vectorized_layer_norm_kernelIffE"
    assert short_kernel_name(mangled) == "vectorized_layer_norm_kernel"


def test_plain_function_and_unmangled_names():
    mangled = "_Z39ncclDevKernel_AllReduce_Sum_f32_RING_LL24ncclDevKernelArgsStorageILm4096EE"
    assert short_kernel_name(mangled) == "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
    assert short_kernel_name("nvjet_sm90_tst_256x128") == "nvjet_sm90_tst_256x128"
    assert short_kernel_name("") == ""


def test_length_beyond_the_end_is_cut_not_an_error():
    assert short_kernel_name("_Z99abc") == "abc"
