"""Short forms and families of kernel names. The rules are the data below.

A name is a base (the function) and the identifiers around it (namespaces, template arguments, types of parameters).
Both are read from mangled names (Itanium C++ ABI, section 5.1) and from demangled or plain ones. The time is
proportional to the name's length, as any user of a GPU chooses names.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

#: Version of the rules: when it grows, `drumline migrate` renames the kernels stored under older rules.
RULES = 1

#: (family, pattern): the first pattern that matches the name's identifiers, joined with spaces, decides. Case is
#: ignored.
FAMILIES: tuple[tuple[str, str], ...] = (
    ("nccl", r"nccl"),
    # Of other libraries: DeepEP, NVSHMEM, PyTorch's symmetric memory, and custom all-reduces (vLLM, TensorRT-LLM,
    # FlashInfer), some of which normalise too.
    (
        "communication",
        r"\bdeep_ep\b|nvshmem|cross_device_reduce|(one|two)_?shot_?all_?reduce|multimem_(one_shot_)?(all|reduce)"
        r"|all_?reduce_fusion|moe_?(a2a|all_?to_?all)|\buserbuffers_",
    ),
    # cuDNN's helpers of attention (dot of dO and O, dQ to 16 bits) do not have it in their names.
    ("attention", r"sdpa|flash|fmha|attention|attn|\bcudnn fusion (compute_dot_do_o|convert_dq)"),
    ("optimizer", r"adam|lamb_|adagrad|adadelta|rmsprop|fused_?sgd|fusedoptimizer|optimizer"),
    (
        "normalisation",
        r"layer_?norm|rms_?norm|batch_?norm|group_?norm|instance_?norm|gammabeta|\bbn_[fb]w|rowwisemoments",
    ),
    (
        "embedding",
        r"embedding|gather|index_?select|indexing_backward|krn_partial|compute_(grad_weight|num_of_partial)|sum_and_scatter",
    ),
    ("convolution", r"conv(?!er)|implicit_gemm|winograd|im2col|col2im|[dw]grad|fprop|dgrad"),
    ("gemm", r"gemm|nvjet|cutlass|cublas|splitk|matmul|gemv|gemvx|xmma|wgmma|triton_tem|_mm_"),
    ("copy", r"memcpy|memset|copy|catarray|chunk_cat|transpose|permute|clone|triton_poi_fused_(_to_copy|cat|clone)\w*"),
    # PyTorch's foreach kernels that do not copy: optimizers and gradient clipping run them.
    ("optimizer", r"multi_tensor_apply"),
    (
        "reduction",
        r"reduce|softmax|nll_loss|cross_entropy|argm(ax|in)|triton_(red|per)|welford|segment_sum|norm_kernel",
    ),
    (
        "elementwise",
        r"elementwise|pointwise|triton_poi|fill|arange|dropout|threshold|where_kernel|masked|tri[lu]_kernel",
    ),
)
OTHER = "other"

#: Functions that only apply another function: their short form has both.
APPLIERS = re.compile(r"elementwise|^reduce_kernel|multi_tensor_apply|pointwise_kernel")
#: Identifiers that are never the applied function.
NOT_APPLIED = re.compile(
    r"^(at|std|c10|cuda|native|detail|binary_internal|internal|templates|memory|array|complex|Half|BFloat16|Float8\w*"
    r"|_GLOBAL_\w*|anonymous|namespace|lambda|operator|const|void|float|double|int|long|unsigned|char|bool|short"
    r"|[AB]UnaryFunctor|(Unary|Binary|Ternary|Pointwise)Op\w*Functor|CopyFunctor|gpu_kernel_impl\w*|ReduceOp|func_wrapper_t"
    r"|TensorIterator\w*|TensorList\w*|FusedOptimizer\w*|TrivialOffsetCalculator|OffsetCalculator|OpaqueType|\w*Metadata)$"
)
#: Parts that the short form of an applied function leaves out.
DECORATION = re.compile(
    r"^CUDAFunctor_|_kernel_cuda$|_cuda_out$|(CUDA)?(KernelImpl|Functor|MathFunctor)$|_kernel_impl$|_functor$"
)

#: Longer names are truncated.
MOST = 8192
_MANGLED = re.compile(r"L[a-z]n?\d+E|S[0-9A-Z]*_|T\d*_|A\d+_|E\d*_|(\d+)(?=[A-Za-z_])|[A-Za-z_]")
_LENGTH = re.compile(r"\d+")
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
_ANONYMOUS = re.compile(r"_GLOBAL__N__[0-9a-f]{8}_\d+_(\w+?)_cu_[0-9a-f]{8}$")


@dataclass(frozen=True, slots=True)
class KernelName:
    """Readable form of a kernel's name; `family` is one of FAMILIES or OTHER."""

    short: str
    family: str


def kernel_name(name: str) -> KernelName:
    """Return short form and family. Mangled and demangled forms give the same, except for what demangling omits."""
    name = name[:MOST]
    before, base, inside = _mangled(name) if name.startswith("_Z") else _plain(name)
    short = base or name
    if APPLIERS.search(base):
        applied = next((name for name in inside if not NOT_APPLIED.match(name)), "")
        short = f"{base}({DECORATION.sub('', applied)})" if applied else base
    identifiers = " ".join((*before, base or name, *inside))
    return KernelName(short, family_of(identifiers))


def family_of(identifiers: str) -> str:
    """Return the family of a name from its identifiers, joined with spaces."""
    return next((family for family, rule in _RULES if rule.search(identifiers)), OTHER)


_RULES = tuple((family, re.compile(rule, re.IGNORECASE)) for family, rule in FAMILIES)


def source_names(mangled: str) -> tuple[list[str], int]:
    """Return the leading identifiers of a mangled name, outermost first, and the index of their end."""
    nested = mangled.startswith("_ZN")
    at = 3 if nested else 2
    names: list[str] = []
    while (nested or not names) and (length := _LENGTH.match(mangled, at)):
        at = length.end() + int(length.group()[:6])
        names.append(mangled[length.end() : at])
    return names, at


def _mangled(name: str) -> tuple[list[str], str, list[str]]:
    """Return (namespaces, base, identifiers after it). An anonymous namespace has the name of its source file."""
    names, at = source_names(name)
    names = [_ANONYMOUS.sub(r"\1", name) for name in names]
    inside: list[str] = []
    while part := _MANGLED.search(name, at):
        at = part.end()
        if part[1]:
            inside.append(name[at : at + int(part[1][:6])])
            at += int(part[1][:6])
    return names[:-1], names[-1] if names else "", inside


def _plain(name: str) -> tuple[list[str], str, list[str]]:
    """Return the same of a demangled or plain name: `void at::native::reduce_kernel<512, ...>(...)`."""
    text = name.replace("(anonymous namespace)::", "")
    head = re.split(r"[<(]", text, maxsplit=1)[0].split(" ")[-1]
    *before, base = head.split("::")
    inside = _IDENTIFIER.findall(text[text.find(head) + len(head) :])
    return before, base, inside
