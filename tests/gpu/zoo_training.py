"""Jobs of the zoo that train whole models on each rank: DDP in many forms, and FSDP. Each function returns its step."""

import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from zoo_parts import (
    CUDA,
    DEVICE,
    LENGTH,
    RANK,
    WIDTH,
    Block,
    Step,
    Transformer,
    adam,
    batch,
    blocks,
    common,
    ddp,
    host_work,
    placed,
    private,
    sized,
    update,
    world,
)


class Exchange(torch.autograd.Function):
    """all_to_all_single of rows; the gradient goes the other way."""

    @staticmethod
    def forward(ctx, rows: torch.Tensor, sent: list[int], received: list[int]) -> torch.Tensor:
        ctx.sizes = sent, received
        result = rows.new_empty((sum(received), *rows.shape[1:]))
        dist.all_to_all_single(result, rows.contiguous(), received, sent)
        return result

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        sent, received = ctx.sizes
        result = gradient.new_empty((sum(sent), *gradient.shape[1:]))
        dist.all_to_all_single(result, gradient.contiguous(), sent, received)
        return result, None, None


def uneven(rows: int) -> tuple[list[int], list[int]]:
    """Return how many rows this rank sends to each rank and receives from it. All ranks draw the same table."""
    table = []
    for _ in range(world()):
        weights = [common.uniform(0.4, 1.6) for _ in range(world())]
        sent = [int(rows * weight / sum(weights)) for weight in weights]
        sent[-1] += rows - sum(sent)
        table.append(sent)
    return table[RANK], [sent[RANK] for sent in table]


class Experts(Block):
    """A layer whose second half is this rank's expert: rows go to it from all ranks, and back."""

    def __init__(self) -> None:
        super().__init__()
        self.expert_up, self.expert_down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = super().forward(x)
        rows = x.reshape(-1, WIDTH)
        sent, received = uneven(len(rows))
        computed = self.expert_down(nn.functional.gelu(self.expert_up(Exchange.apply(rows, sent, received))))
        return x + Exchange.apply(computed, received, sent).view(x.shape)


def moe() -> Step:
    """Four pairs of all-to-alls in a step, two of them backwards, beside six or so AllReduces of DDP."""
    model = Transformer([*blocks(3), Experts(), *blocks(3), Experts()])
    ignored = [name for name, _ in model.named_parameters() if "expert" in name]
    nn.parallel.DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ignored)
    wrapped = ddp(model, bucket_cap_mb=35)
    optimizer = adam(wrapped.parameters())

    def step() -> None:
        loss = wrapped(batch(sized(12, 2)))
        loss.backward()
        update(optimizer, loss)

    return step


def accumulation() -> Step:
    """Four micro-steps, of which the last one reduces the gradients."""
    model = ddp(Transformer(blocks(8)))
    optimizer = adam(model.parameters())

    def step() -> None:
        for _ in range(3):
            with model.no_sync():
                model(batch(sized(4, 2))).backward()
        loss = model(batch(sized(4, 2)))
        loss.backward()
        update(optimizer, loss)

    return step


def plain_ddp() -> Step:
    model = ddp(Transformer(blocks(10)))
    optimizer = adam(model.parameters())

    def step() -> None:
        loss = model(batch(sized(12, 2)))
        loss.backward()
        update(optimizer, loss)

    return step


def lengths() -> Step:
    """Sequences whose length differs by rank and step."""
    model = ddp(Transformer(blocks(10)))
    optimizer = adam(model.parameters())

    def step() -> None:
        loss = model(batch(sized(12, 2), LENGTH * private.randint(8, 16) // 16))
        loss.backward()
        update(optimizer, loss)

    return step


def fsdp2() -> Step:
    from torch.distributed.fsdp import fully_shard

    mesh = dist.device_mesh.init_device_mesh(DEVICE.type, (world(),))
    model = placed(Transformer(blocks(10)))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)

    def step() -> None:
        loss = model(batch(sized(12, 2)))
        loss.backward()
        update(optimizer, loss)

    return step


def ddp_buffers() -> Step:
    """Convolutions with BatchNorm, whose buffers rank 0 broadcasts in each step."""
    width = sized(256, 8)
    parts: list[nn.Module] = [nn.Conv2d(3, width, 3, 2, 1)]
    for _ in range(sized(12, 2)):
        parts += [nn.Conv2d(width, width, 3, 1, 1), nn.BatchNorm2d(width), nn.ReLU()]
    model = ddp(nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1)))
    optimizer = adam(model.parameters())
    dtype = next(model.parameters()).dtype

    def step() -> None:
        host_work()
        pictures = torch.randn(sized(48, 2), 3, sized(112, 8), sized(112, 8), device=DEVICE, dtype=dtype)
        loss = model(pictures).float().square().mean()
        loss.backward()
        update(optimizer, loss)

    return step


def rl() -> Step:
    """Rollouts whose length differs by rank and step, then an update with the advantages of all ranks."""
    model = ddp(Transformer(blocks(8)))
    optimizer = adam(model.parameters())

    def step() -> None:
        prompts = batch(sized(16, 2), sized(64, 8))
        rewards = torch.zeros(len(prompts), device=DEVICE)
        with torch.no_grad():
            for _ in range(private.randint(sized(8, 1), sized(26, 3))):
                rewards += model.module(prompts)
                prompts = prompts.roll(1, 1)
        gathered = rewards.new_empty(world() * len(rewards))
        dist.all_gather_into_tensor(gathered, rewards)
        loss = model(batch(sized(6, 2))) * (rewards.mean() - gathered.mean() + 1)
        loss.backward()
        update(optimizer, loss)

    return step


def evaluation() -> Step:
    """Each 100th step evaluates on all ranks; each 150th step rank 0 saves the model while the other waits for it."""
    model = ddp(Transformer(blocks(10)))
    optimizer = adam(model.parameters())
    path = Path(os.environ["ZOO_DISK"], f"checkpoint-{os.getpid()}.pt")
    done = 0

    def step() -> None:
        nonlocal done
        done += 1
        loss = model(batch(sized(12, 2)))
        loss.backward()
        update(optimizer, loss)
        if done % 100 == 0:
            with torch.no_grad():
                total = sum(model.module(batch(sized(12, 2))) for _ in range(4))
            dist.all_reduce(total)
        if done % 150 == 0 and RANK == 0:
            torch.save(model.state_dict(), path)

    return step


def compiled() -> Step:
    """torch.compile with CUDA graphs."""
    model = Transformer(blocks(8))
    wrapped = ddp(model)
    run = torch.compile(wrapped, mode="reduce-overhead" if CUDA else "default", backend="inductor" if CUDA else "eager")
    optimizer = adam(wrapped.parameters())

    def step() -> None:
        if CUDA:
            torch.compiler.cudagraph_mark_step_begin()
        loss = run(batch(sized(12, 2)))
        loss.backward()
        update(optimizer, loss)

    return step


def two_hosts() -> Step:
    """DDP of a small model, whose gradients go through sockets."""
    model = ddp(Transformer(blocks(2)))
    optimizer = adam(model.parameters())

    def step() -> None:
        loss = model(batch(sized(16, 2)))
        loss.backward()
        update(optimizer, loss)

    return step
