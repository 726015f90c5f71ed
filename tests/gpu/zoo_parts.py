"""Parts that the jobs of the zoo share: sizes, layers, batches of random tokens, and the work of a host in a step.

Where CUDA is missing all sizes are tiny, for a dry run on CPUs.
"""

import os
import random
import time
from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

RANK, LOCAL_RANK = int(os.environ.get("RANK", "0")), int(os.environ.get("LOCAL_RANK", "0"))
CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda", LOCAL_RANK) if CUDA else torch.device("cpu")
DTYPE = torch.bfloat16 if CUDA else torch.float32
WIDTH, LENGTH, TOKENS, HEADS = (1024, 1024, 8192, 16) if CUDA else (32, 16, 100, 2)
#: Draws the same numbers on all ranks, and others on this rank.
seed = int(os.environ.get("ZOO_SEED", "1"))
common, private = random.Random(seed), random.Random(1000 * seed + RANK)

#: Makes a step of a job; the next call takes it.
Step = Callable[[], None]


def sized(on_gpu: int, on_cpu: int) -> int:
    """Return a size for this machine."""
    return on_gpu if CUDA else on_cpu


def host_work(ms: float = 3.0) -> None:
    """Compute on the host for about so long, as code that prepares a batch does."""
    until = time.perf_counter() + 1e-3 * ms * private.lognormvariate(0.0, 0.15) * (1 if CUDA else 0.1)
    while time.perf_counter() < until:
        sorted(range(200), key=lambda number: -number)


def batch(rows: int, length: int = LENGTH) -> torch.Tensor:
    """Return random tokens on the device, loaded by the host."""
    host_work()
    ids = torch.randint(0, TOKENS, (rows, length))
    return (ids.pin_memory() if CUDA else ids).to(DEVICE, non_blocking=True)


class Block(nn.Module):
    """A layer of a transformer."""

    def __init__(self, width: int = WIDTH, hidden: int = 4 * WIDTH, heads: int = HEADS) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.shape
        q, k, v = self.qkv(self.norm(x)).view(rows, length, 3, self.heads, width // self.heads).unbind(2)
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(mixed.transpose(1, 2).reshape(rows, length, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.attend(x)
        return x + self.down(functional.gelu(self.up(self.norm_2(x))))


class Transformer(nn.Module):
    """Embedding, layers, and a loss that is small on average."""

    def __init__(self, layers: Iterable[nn.Module]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, WIDTH)
        self.layers = nn.ModuleList(layers)
        self.head = nn.Linear(WIDTH, 64)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x).float().square().mean()


def blocks(count: int) -> list[nn.Module]:
    return [Block() for _ in range(sized(count, 2))]


def placed(model: nn.Module) -> nn.Module:
    """Return the model on the device, in the type that it computes in."""
    return model.to(DEVICE, DTYPE)


def ddp(model: nn.Module, **settings: object) -> nn.Module:
    devices = [LOCAL_RANK] if CUDA else None
    return nn.parallel.DistributedDataParallel(placed(model), device_ids=devices, **settings)


def adam(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-6, fused=CUDA)


def update(optimizer: torch.optim.Optimizer, loss: torch.Tensor | None = None) -> None:
    """Step the optimizer, and wait for the step as code that logs the loss does."""
    optimizer.step()
    optimizer.zero_grad()
    if loss is not None:
        loss.item()
    elif CUDA:
        torch.cuda.current_stream().synchronize()


def norm_of(model: nn.Module) -> torch.Tensor:
    """Return the norm of the gradients, as clipping does."""
    return nn.utils.clip_grad_norm_(model.parameters(), 1.0)


def world() -> int:
    return dist.get_world_size()


def peer() -> int:
    """Return the other rank of two."""
    return 1 - RANK
