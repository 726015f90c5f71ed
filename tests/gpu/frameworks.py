"""A job with a fault, as users of a framework write it, on all GPUs: frameworks.py deepspeed|lightning|trainer STEPS.

In the second half rank 1 waits 20 ms on the host in every step. Knows nothing of drumline. Started by the framework's
own launcher: `deepspeed frameworks.py deepspeed`, `python frameworks.py lightning`, `accelerate launch frameworks.py
trainer`.
"""

import os
import sys
import tempfile
import time

import torch

BATCH, WIDTH = 4096, 4096


class Layers(torch.nn.Module):
    """Square layers; `late` decides whether this process waits before its work."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        layers = [torch.nn.Linear(WIDTH, WIDTH, bias=False, dtype=torch.bfloat16) for _ in range(8)]
        self.layers, self.steps, self.done = torch.nn.Sequential(*layers), steps, 0

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        self.done += 1
        if self.done > self.steps // 2 and torch.distributed.get_rank() == 1:
            time.sleep(0.02)
        return {"loss": self.layers(x).float().square().mean()}


class Rows(torch.utils.data.Dataset):
    def __init__(self, rows: int) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        return {"x": torch.full((WIDTH,), 1e-3 * i, dtype=torch.bfloat16)}


def deepspeed(steps: int) -> None:
    import deepspeed

    model = Layers(steps)
    settings = {
        "train_micro_batch_size_per_gpu": BATCH,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 2},
        "zero_allow_untested_optimizer": True,
    }
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=torch.optim.SGD(model.parameters(), lr=1e-9), config=settings
    )
    data = torch.randn(BATCH, WIDTH, device=engine.device, dtype=torch.bfloat16)
    for _ in range(steps):
        engine.backward(engine(data)["loss"])
        engine.step()


def lightning(steps: int) -> None:
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = Layers(steps)

        def training_step(self, batch: dict[str, torch.Tensor], number: int) -> torch.Tensor:
            return self.model(batch["x"].repeat(BATCH // 8, 1))["loss"]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=1e-9)

    loader = torch.utils.data.DataLoader(Rows(8 * steps * torch.cuda.device_count()), batch_size=8)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = lightning.Trainer(max_steps=steps, devices=torch.cuda.device_count(), strategy="ddp", **quiet)
    trainer.fit(Module(), loader)


def trainer(steps: int) -> None:
    import transformers

    with tempfile.TemporaryDirectory() as folder:
        settings = transformers.TrainingArguments(
            folder, max_steps=steps, per_device_train_batch_size=256, report_to=[], save_strategy="no", optim="sgd"
        )
        rows = Rows(256 * steps * torch.cuda.device_count())
        transformers.Trainer(Layers(steps), settings, train_dataset=rows).train()


how, steps = [
    argument for argument in sys.argv[1:] if not argument.startswith("--local_rank")
]  # DeepSpeed puts that in
{"deepspeed": deepspeed, "lightning": lightning, "trainer": trainer}[how](int(steps))
print(f"rank {os.environ.get('RANK', '?')} done", flush=True)
