"""One rank of the jobs of tests/gpu/causes.py: causes_job.py HOW

RANK, LOCAL_RANK, WORLD_SIZE, MASTER_* and CAUSES_* are set. HOW: ddp, link (the same), trainer (Hugging Face),
lightning, accelerate (FSDP), fsdp2. Small transformers with random weights and tokens; where CUDA is missing they are
tiny, for a dry run on CPUs. `neighbour` keeps the GPU busy.
Knows nothing of drumline. Waits for the file CAUSES_GATE before it uses a GPU.
"""

import os
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from causes_faults import PERIOD, STALL_S, Plan, no_core_dumps

how, rank = sys.argv[1], int(os.environ.get("LOCAL_RANK", "0"))
CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda", rank) if CUDA else torch.device("cpu")
WIDTH, LAYERS, LENGTH, TOKENS = (768, 12, 256, 8192) if CUDA else (32, 2, 16, 100)
BATCH = 8


class Rows(torch.utils.data.Dataset):
    """Random tokens; slow to load while the plan says so."""

    def __init__(self, plan: Plan, size: int, workers: int = 0) -> None:
        self.plan, self.size = plan, size
        # Workers load ahead: only what is more than their share of the step makes the job wait.
        self.item_s = STALL_S / BATCH if not workers else 4 * workers * STALL_S / BATCH

    def __len__(self) -> int:
        return 1 << 18

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        if self.plan.on("data_loader"):
            time.sleep(self.item_s)
        ids = torch.randint(0, TOKENS, (LENGTH,))
        return {"input_ids": ids, "labels": ids}


class Transformer(torch.nn.Module):
    """Embedding, encoder layers, and a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(TOKENS, WIDTH)
        layer = [
            torch.nn.TransformerEncoderLayer(WIDTH, WIDTH // 16 if not CUDA else 12, 4 * WIDTH, 0.0, batch_first=True)
            for _ in range(LAYERS)
        ]
        self.layers = torch.nn.ModuleList(layer)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor | None = None) -> torch.Tensor:
        x = self.embedding(input_ids)
        for layer in self.layers:
            x = layer(x)
        return x.float().square().mean()


def init() -> None:
    if CUDA:
        torch.cuda.set_device(DEVICE)
        dist.init_process_group("nccl", device_id=DEVICE)
    else:
        dist.init_process_group("gloo")


def loader(plan: Plan) -> torch.utils.data.DataLoader:
    return torch.utils.data.DataLoader(Rows(plan, BATCH), batch_size=BATCH, pin_memory=CUDA)


def ahead() -> torch.autocast:
    return torch.autocast(DEVICE.type, dtype=torch.bfloat16)


def loop(plan: Plan, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """A plain loop that looks at its loss in each step."""
    for batch in loader(plan):
        ids = batch["input_ids"].to(DEVICE, non_blocking=True)
        if plan.on("batch"):
            ids = torch.cat([ids, ids[: BATCH // 2]])
        with ahead():
            loss = model(ids)
        loss.backward()
        if plan.on("synchronisation"):
            wait_for_gradients(model)
        optimizer.step()
        optimizer.zero_grad()
        loss.item()
        if plan.step():
            return


def wait_for_gradients(model: torch.nn.Module) -> None:
    """Wait for the GPU for each parameter, as code that logs the norms of gradients does."""
    until = time.perf_counter() + STALL_S
    while time.perf_counter() < until:
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.norm().item()


def ddp(plan: Plan) -> None:
    init()
    model = torch.nn.parallel.DistributedDataParallel(Transformer().to(DEVICE), device_ids=[rank] if CUDA else None)
    loop(plan, model, torch.optim.AdamW(model.parameters(), lr=1e-6))


def fsdp2(plan: Plan) -> None:
    from torch.distributed.fsdp import fully_shard

    init()
    mesh = dist.device_mesh.init_device_mesh(DEVICE.type, (dist.get_world_size(),))
    model = Transformer().to(DEVICE)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    loop(plan, model, torch.optim.AdamW(model.parameters(), lr=1e-6))


def accelerate(plan: Plan) -> None:
    from accelerate import Accelerator, FullyShardedDataParallelPlugin

    if CUDA:
        torch.cuda.set_device(DEVICE)
    plugin = FullyShardedDataParallelPlugin(
        auto_wrap_policy="transformer_based_wrap", transformer_cls_names_to_wrap=["TransformerEncoderLayer"]
    )
    accelerator = Accelerator(fsdp_plugin=plugin, mixed_precision="bf16", cpu=not CUDA)
    model = Transformer()
    model, optimizer, rows = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-6), loader(plan))
    for batch in rows:
        loss = model(batch["input_ids"])
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        if plan.step():
            return


def trainer(plan: Plan) -> None:
    import transformers

    class Steps(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **named):
            if plan.on("save") and plan.steps % PERIOD == 0:
                named["model"].save_pretrained(os.environ["CAUSES_DISK"] + f"/model-{rank}")
            control.should_training_stop = plan.step()
            return control

    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=TOKENS, n_embd=WIDTH, n_layer=LAYERS, n_head=WIDTH // 16 if not CUDA else 12)
    )
    with tempfile.TemporaryDirectory() as folder:
        settings = transformers.TrainingArguments(
            folder, max_steps=1 << 20, per_device_train_batch_size=BATCH, report_to=[], save_strategy="no", bf16=CUDA,
            dataloader_num_workers=2, disable_tqdm=True, use_cpu=not CUDA,
        )  # fmt: skip
        transformers.Trainer(model, settings, train_dataset=Rows(plan, BATCH, 2), callbacks=[Steps()]).train()


def lightning(plan: Plan) -> None:
    import lightning
    from lightning.pytorch.plugins.environments import TorchElasticEnvironment

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = Transformer()

        def training_step(self, batch, number):
            return self.model(batch["input_ids"])

        def on_train_batch_end(self, *_):
            if plan.step():
                self.trainer.should_stop = True

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-6)

    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    lightning.Trainer(
        max_steps=-1, devices=dist_size(), strategy="ddp", accelerator="gpu" if CUDA else "cpu",
        precision="bf16-mixed", plugins=[TorchElasticEnvironment()], **quiet,
    ).fit(Module(), loader(plan))  # fmt: skip


def dist_size() -> int:
    return int(os.environ["WORLD_SIZE"])


def neighbour() -> None:
    """Keep the GPU busy from the first line of the standard input on."""
    sys.stdin.readline()
    if CUDA:
        torch.cuda.set_device(DEVICE)  # without it, waiting makes a context on the first GPU
    work = torch.randn(4096, 4096, device=DEVICE, dtype=torch.bfloat16)
    while True:
        for _ in range(20):
            work = (work @ work).clamp(-1, 1)
        if CUDA:
            torch.cuda.synchronize()


JOBS = {"ddp": ddp, "link": ddp, "fsdp2": fsdp2, "accelerate": accelerate, "trainer": trainer, "lightning": lightning}


def main() -> None:
    no_core_dumps()
    if how == "neighbour":
        neighbour()
    for module in {"trainer": ["transformers"], "lightning": ["lightning"], "accelerate": ["accelerate"]}.get(how, []):
        __import__(module)
    plan = Plan(rank)
    print("ready", flush=True)
    while not Path(os.environ["CAUSES_GATE"]).exists():
        time.sleep(0.05)
    JOBS[how](plan)
    plan.report(steps=plan.steps)
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":  # workers of a loader that are spawned import this file
    main()
