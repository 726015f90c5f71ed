"""Jobs of the zoo that are pipelines of two ranks. Each function returns its step."""

import torch
import torch.distributed as dist
from torch import nn
from zoo_parts import (
    DEVICE,
    DTYPE,
    LENGTH,
    RANK,
    WIDTH,
    Block,
    Step,
    adam,
    host_work,
    norm_of,
    peer,
    placed,
    sized,
    update,
    world,
)


def stage_layers(stage: int, stages: int, layers: int) -> nn.Sequential:
    """Return a stage of a pipeline. The last one is 18 % larger than the first one."""
    hidden = 4 * WIDTH if stage < stages - 1 else sized(round(5.08 * WIDTH) // 64 * 64, 5 * WIDTH)
    return nn.Sequential(*(Block(hidden=hidden) for _ in range(layers)))


def pipeline() -> Step:
    """Two stages: all micro-batches forwards, then all backwards. The second stage is 18 % larger by design."""
    micro, rows = 4, sized(3, 2)
    model = placed(stage_layers(RANK, 2, sized(10, 2)))
    # In stage 1 the hidden layers are larger: 8 WIDTH^2 of 12 parameters a layer by 27 %, which is 18 % of all.
    optimizer = adam(model.parameters())

    def empty() -> torch.Tensor:
        return torch.empty(rows, LENGTH, WIDTH, device=DEVICE, dtype=DTYPE)

    def step() -> None:
        host_work()
        sent, kept = [], []
        for _ in range(micro):
            if RANK == 0:
                result = model(torch.randn(rows, LENGTH, WIDTH, device=DEVICE, dtype=DTYPE))
                given = result.detach().contiguous()
                sent.append((dist.isend(given, peer()), given))
                kept.append((result, None))
            else:
                received = empty()
                dist.recv(received, peer())
                received.requires_grad_()
                kept.append((model(received).float().square().mean(), received))
        for result, received in kept:
            if RANK == 0:
                gradient = empty()
                dist.recv(gradient, peer())
                result.backward(gradient)
            else:
                result.backward()
                sent.append((dist.isend(received.grad, peer()), received.grad))
        for work, _ in sent:
            work.wait()
        update(optimizer, norm_of(model))

    return step


def scheduled(stages: int, name: str) -> Step:
    """Return a step of a pipeline whose order PyTorch's schedule `name` chooses."""
    from torch.distributed import pipelining

    micro, rows = 8, sized(2, 1)
    numbers = range(RANK, stages, world())
    parts = [placed(stage_layers(stage, stages, sized(20 // stages, 1))) for stage in numbers]
    shape = torch.empty(rows, LENGTH, WIDTH, device=DEVICE, dtype=DTYPE)
    built = [
        pipelining.PipelineStage(part, stage, stages, DEVICE, input_args=(shape,), output_args=(shape,))
        for part, stage in zip(parts, numbers, strict=True)
    ]
    schedule = getattr(pipelining, name)(
        built if stages > world() else built[0], micro, loss_fn=lambda x, target: (x - target).float().square().mean()
    )
    model = nn.ModuleList(parts)
    optimizer = adam(model.parameters())

    def step() -> None:
        host_work()
        x = torch.randn(micro * rows, LENGTH, WIDTH, device=DEVICE, dtype=DTYPE)
        losses: list[torch.Tensor] = []
        is_first = RANK == 0
        schedule.step(*((x,) if is_first else ()), **({} if is_first else {"target": x, "losses": losses}))
        update(optimizer, norm_of(model))

    return step


def one_f_one_b() -> Step:
    return scheduled(2, "Schedule1F1B")


def interleaved() -> Step:
    return scheduled(4, "ScheduleInterleaved1F1B")
