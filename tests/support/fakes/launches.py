"""CUDA's driver for machines without a GPU, as far as launches are counted: kernels, copies, captures, graphs, modules.

A call goes to the function that was given to the fake CUPTI, at its begin and at its end, with parameters laid out as
in CUPTI's headers; what that function calls of the driver is answered from here.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field

from support.fakes.cupti import FakeCupti

VOID, U64, INT = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int
#: CUPTI's numbers of calls.
LAUNCH, LAUNCH_PTSZ, LAUNCH_EX, LAUNCH_EX_PTSZ, COOPERATIVE, MANY = 307, 442, 652, 653, 477, 480
GRAPH_LAUNCH, GRAPH_DESTROY, GRAPH_UPDATE, INSTANTIATE = 514, 516, 696, 643
BEGIN_CAPTURE, END_CAPTURE, UNLOAD, LIBRARY_UNLOAD = 539, 497, 22, 680
HTOD_ASYNC, DTOH, DTOD_ASYNC, COPY_ASYNC, COPY_2D, PEER_ASYNC = 277, 278, 281, 306, 289, 319
BATCH, SET_32_ASYNC, SET_2D = 776, 220, 222
#: CUgraphNodeType.
KERNEL_NODE, COPY_NODE, MEMSET_NODE, CHILD_NODE, CONDITIONAL_NODE = 0, 1, 2, 4, 13
#: CUresult: success, not ready to launch, an invalidated capture.
OK, INVALID, INVALIDATED = 0, 1, 901
#: A grid of one block of 32 threads, without dynamic shared memory.
SMALL = (1, 1, 1, 32, 1, 1, 0)


class CallbackData(ctypes.Structure):
    _fields_ = [
        ("site", INT), ("function", VOID), ("params", VOID), ("result", VOID), ("symbol", ctypes.c_char_p),
        ("context", VOID), ("context_uid", ctypes.c_uint32), ("correlation_data", VOID),
        ("correlation", ctypes.c_uint32),
    ]  # fmt: skip


def address(memory: ctypes.Array) -> int:
    return ctypes.addressof(memory)


def numbers(*values: int) -> ctypes.Array:
    return (U64 * len(values))(*values)


def packed_shape(shape: tuple[int, ...]) -> list[int]:
    """Seven 32-bit numbers as words: grid, block, shared memory."""
    eight = [*shape, *[0] * (8 - len(shape))]
    return [eight[i] | eight[i + 1] << 32 for i in range(0, 8, 2)]


@dataclass
class Node:
    """Of a graph. `function`: of a kernel; `shape`: its grid, block and shared memory; `bytes`: of a copy from the host
    or of a memset; `child`: a graph."""

    type: int
    function: int = 0
    shape: tuple[int, ...] = SMALL
    bytes: int = 0
    child: int = 0
    is_kernel_handle: bool = False


@dataclass
class FakeDriver:
    """`names`: of functions. `graphs`: handle -> nodes. `capturing`: streams. `device`: addresses that are the GPU's.
    `ordinals`: address -> CUDA ordinal, else 0. `gives_symbols`: CUPTI states the name with a launch."""

    cupti: FakeCupti
    names: dict[int, bytes] = field(default_factory=dict)
    graphs: dict[int, list[Node]] = field(default_factory=dict)
    capturing: set[int] = field(default_factory=set)
    device: range = range(0x7000_0000, 0x8000_0000)
    gives_symbols: bool = True
    ordinals: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.nodes: dict[int, Node] = {}
        self._texts: dict[bytes, ctypes.Array] = {}
        for name, arguments in {
            "cuFuncGetName": (VOID, VOID),
            "cuKernelGetName": (VOID, VOID),
            "cuStreamIsCapturing": (VOID, VOID),
            "cuPointerGetAttribute": (VOID, INT, U64),
            "cuGraphGetNodes": (VOID, VOID, VOID),
            "cuGraphNodeGetType": (VOID, VOID),
            "cuGraphKernelNodeGetParams_v2": (VOID, VOID),
            "cuGraphMemcpyNodeGetParams": (VOID, VOID),
            "cuGraphMemsetNodeGetParams": (VOID, VOID),
            "cuGraphChildGraphNodeGetGraph": (VOID, VOID),
        }.items():
            setattr(self, name, ctypes.CFUNCTYPE(INT, *arguments)(getattr(self, "_" + name[2:].lower())))

    def call(
        self, number: int, params: ctypes.Array, symbol: bytes | None = None, result: int = OK, correlation: int = 0
    ) -> None:
        """Make a call of the driver, which CUPTI reports at its begin and its end."""
        returned = INT(result)
        for site in (0, 1):
            data = CallbackData(site=site, params=ctypes.addressof(params), symbol=symbol, correlation=correlation)
            data.result = ctypes.addressof(returned) if site else None
            self.cupti.call_back(number, ctypes.addressof(data))

    def launch(
        self, function: int, shape: tuple[int, ...] = SMALL, number: int = LAUNCH, stream: int = 9, result: int = OK
    ) -> None:
        symbol, seven = self.names.get(function) if self.gives_symbols else None, packed_shape(shape)
        if number in (LAUNCH_EX, LAUNCH_EX_PTSZ):
            config = numbers(*seven, stream)
            self.call(number, numbers(ctypes.addressof(config), function, 0, 0), symbol, result)
        elif number == MANY:
            listed = numbers(*_launch(function, shape), stream, 0, *_launch(function, shape), stream, 0)
            self.call(number, numbers(ctypes.addressof(listed), 2, 0), None, result)
        else:
            self.call(number, numbers(*_launch(function, shape), stream, 0, 0), symbol, result)

    def instantiate(self, executable: int, graph: int, number: int = INSTANTIATE, result: int = OK) -> None:
        if number == GRAPH_UPDATE:
            self.call(number, numbers(executable, graph, 0), result=result)
            return
        place = numbers(executable)
        self.call(number, numbers(ctypes.addressof(place), graph, 0), result=result)

    def replay(self, executable: int, stream: int = 9) -> None:
        self.call(GRAPH_LAUNCH, numbers(executable, stream))

    def capture(self, stream: int) -> None:
        self.capturing.add(stream)
        self.call(BEGIN_CAPTURE, numbers(stream, 0))

    def end_capture(self, stream: int, result: int = OK) -> None:
        self.capturing.discard(stream)
        self.call(END_CAPTURE, numbers(stream, 0), result=result)

    def _text(self, place: int, name: bytes | None) -> int:
        if name is None:
            return INVALID
        text = self._texts.setdefault(name, ctypes.create_string_buffer(name))
        U64.from_address(place).value = ctypes.addressof(text)
        return OK

    def _funcgetname(self, place, function):
        return self._text(place, self.names.get(function or 0))

    def _kernelgetname(self, place, kernel):
        return self._text(place, self.names.get(kernel or 0))

    def _streamiscapturing(self, stream, status):
        INT.from_address(status).value = int(stream in self.capturing)
        return OK

    def _pointergetattribute(self, place, attribute, pointer):
        assert attribute in (2, 9)  # type of memory, CUDA ordinal
        ctypes.c_uint32.from_address(place).value = 2 if attribute == 2 else self.ordinals.get(pointer, 0)
        return OK if pointer in self.device else INVALID

    def _graphgetnodes(self, graph, nodes, count):
        of = self.graphs[graph]
        if nodes:
            for number, node in enumerate(of):
                self.nodes[id(node)] = node
                U64.from_address(nodes + 8 * number).value = id(node)
        U64.from_address(count).value = len(of)
        return OK

    def _graphnodegettype(self, node, place):
        INT.from_address(place).value = self.nodes[node].type
        return OK

    def _graphkernelnodegetparams_v2(self, node, place):
        of = self.nodes[node]
        head = _launch(0 if of.is_kernel_handle else of.function, of.shape)
        values = numbers(*head, 0, 0, of.function if of.is_kernel_handle else 0, 0)
        ctypes.memmove(place, values, ctypes.sizeof(values))
        return OK

    def _graphmemcpynodegetparams(self, node, place):
        values = numbers(*[0] * 25)
        values[4], values[15], values[22], values[23], values[24] = 1, 2, self.nodes[node].bytes, 1, 1
        ctypes.memmove(place, values, ctypes.sizeof(values))
        return OK

    def _graphmemsetnodegetparams(self, node, place):
        values = numbers(0, 0, 4 << 32, self.nodes[node].bytes // 4, 1)
        ctypes.memmove(place, values, ctypes.sizeof(values))
        return OK

    def _graphchildgraphnodegetgraph(self, node, place):
        U64.from_address(place).value = self.nodes[node].child
        return OK


def _launch(function: int, shape: tuple[int, ...]) -> list[int]:
    """A function and its shape, as five words."""
    return [function, *packed_shape(shape)]
