"""Jobs of the zoo that divide a model between the ranks: tensor, pipeline and context parallel, shared embeddings.

Each function returns its step.
"""

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from zoo_parts import (
    DEVICE,
    DTYPE,
    WIDTH,
    Block,
    Step,
    Transformer,
    adam,
    batch,
    common,
    ddp,
    host_work,
    norm_of,
    peer,
    placed,
    sized,
    update,
    world,
)
from zoo_training import Exchange

import drumline


class Reduced(torch.autograd.Function):
    """A sum over the ranks, whose gradient is passed on as it is."""

    @staticmethod
    def forward(ctx, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous().clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


class Copied(torch.autograd.Function):
    """The same on all ranks, whose gradient is a sum over the ranks."""

    @staticmethod
    def forward(ctx, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> torch.Tensor:
        gradient = gradient.contiguous().clone()
        dist.all_reduce(gradient)
        return gradient


class Divided(nn.Module):
    """A layer of which each rank computes a part: two sums forwards, two backwards."""

    def __init__(self, width: int) -> None:
        super().__init__()
        part = width // world()
        self.norm, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.values, self.out = nn.Linear(width, 3 * part), nn.Linear(3 * part, width)
        self.up, self.down = nn.Linear(width, 4 * part), nn.Linear(4 * part, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + Reduced.apply(self.out(functional.silu(self.values(Copied.apply(self.norm(x))))))
        return x + Reduced.apply(self.down(functional.gelu(self.up(Copied.apply(self.norm_2(x))))))


def tp() -> Step:
    """Training: the same batch on both ranks."""
    model = placed(Transformer([Divided(WIDTH) for _ in range(sized(12, 2))]))
    optimizer = adam(model.parameters())

    def step() -> None:
        loss = model(batch(sized(16, 2)))
        loss.backward()
        norm_of(model)
        update(optimizer, loss)

    return step


def tp_decode() -> Step:
    """A request of one to eight sequences in a step, 16 tokens one after the other; a scheduler between them."""
    width, number = sized(8192, 32), 0
    with torch.device(DEVICE):
        model = nn.Sequential(*(Divided(width).to(DTYPE) for _ in range(sized(4, 2))))

    def step() -> None:
        nonlocal number
        drumline.step(number)
        number += 1
        host_work(4.0)
        x = torch.randn(common.randint(1, 8), 1, width, device=DEVICE, dtype=DTYPE)
        with torch.no_grad():
            for _ in range(16):
                x = functional.layer_norm(model(x), (width,))
                x.sum().item()
                time.sleep(5e-4)

    return step


class Ring(torch.autograd.Function):
    """Keys and values of the other rank, in a ring of sends; the gradients go back."""

    @staticmethod
    def forward(ctx, x: torch.Tensor) -> torch.Tensor:
        return passed_on(x)

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> torch.Tensor:
        return passed_on(gradient)


def passed_on(x: torch.Tensor) -> torch.Tensor:
    x, received = x.contiguous(), torch.empty_like(x)
    pair = [dist.P2POp(dist.isend, x, peer()), dist.P2POp(dist.irecv, received, peer())]
    for work in dist.batch_isend_irecv(pair):
        work.wait()
    return received


class RingBlock(Block):
    """A layer that attends to both halves of a sequence, of which each rank has one."""

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.shape
        q, k, v = self.qkv(self.norm(x)).view(rows, length, 3, self.heads, width // self.heads).unbind(2)
        both = torch.stack((k, v))
        k, v = torch.cat((both, Ring.apply(both)), 2).unbind(0)
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        mixed = functional.scaled_dot_product_attention(q, k, v)
        return x + self.out(mixed.transpose(1, 2).reshape(rows, length, width))


def context() -> Step:
    """Context parallel: half of each sequence on each rank, and DDP for the gradients."""
    model = ddp(Transformer([RingBlock() for _ in range(sized(8, 2))]))
    optimizer = adam(model.parameters())

    def step() -> None:
        loss = model(batch(sized(4, 2), sized(2048, 16)))
        loss.backward()
        update(optimizer, loss)

    return step


def recommender() -> Step:
    """Embedding tables divided between the ranks, all-to-alls of what is looked up, and DDP for the dense part."""
    tables, rows, width = sized(16, 4), sized(16384, 8), sized(128, 8)
    embedding = placed(nn.Embedding(sized(1 << 20, 100), width))
    dense = [nn.Linear(world() * tables * width, 4 * WIDTH), nn.ReLU()]
    for _ in range(sized(6, 1)):
        dense += [nn.Linear(4 * WIDTH, 4 * WIDTH), nn.ReLU()]
    model = ddp(nn.Sequential(*dense, nn.Linear(4 * WIDTH, 1)))
    optimizer = adam(model.parameters())
    sparse = torch.optim.SGD(embedding.parameters(), lr=1e-3)

    def step() -> None:
        host_work(4.0)
        indices = torch.randint(0, embedding.num_embeddings, (world() * rows, tables)).to(DEVICE)
        looked_up = embedding(indices).view(world() * rows, tables * width)
        sizes = [rows] * world()
        exchanged = Exchange.apply(looked_up, sizes, sizes)
        features = exchanged.view(world(), rows, tables * width).transpose(0, 1).reshape(rows, -1)
        loss = model(features).float().square().mean()
        loss.backward()
        update(optimizer, loss)
        sparse.step()
        sparse.zero_grad()

    return step
