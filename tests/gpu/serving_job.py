"""Jobs of serving.py, which need PyTorch and transformers: a model, ranks with tensor parallelism, an engine.

usage: serving_job.py model FOLDER | ranks FOLDER LATE | adapters

model writes a small Llama with random weights. ranks generates with tensor parallelism below torchrun; rank LATE (-1:
none) sleeps a fifth of each iteration. adapters is an engine of its own with drumline's calls, of whose adapters one
computes twice as much.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
import transformers

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPE = torch.bfloat16 if DEVICE == "cuda" else torch.float32
#: Few layers, so that an iteration is short beside what recording costs.
WIDTH, LAYERS = (2_048, int(os.environ.get("SERVING_LAYERS", "4"))) if DEVICE == "cuda" else (64, 2)
TOKENS = 8_192
#: Requests of ranks: (tokens of the prompt, tokens to generate).
RANKS_LOAD = [(64 + 8 * (n % 32), 160) for n in range(192 if DEVICE == "cuda" else 12)]
SECONDS_OF_ADAPTERS = float(os.environ.get("SERVING_ADAPTERS_S", "20"))


def write_model(folder: Path) -> None:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=TOKENS, hidden_size=WIDTH, intermediate_size=4 * WIDTH, num_hidden_layers=LAYERS,
        num_attention_heads=16, num_key_value_heads=8, head_dim=max(WIDTH // 16, 32), max_position_embeddings=4_096,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).to(DTYPE).save_pretrained(folder)


def load_model(folder: str, **more: object) -> transformers.PreTrainedModel:
    return transformers.LlamaForCausalLM.from_pretrained(folder, dtype=DTYPE, **more).eval()


def settings(count: int) -> transformers.GenerationConfig:
    return transformers.GenerationConfig(max_new_tokens=count, do_sample=False, eos_token_id=-1, pad_token_id=0)


def batching() -> dict[str, object]:
    """Options of continuous batching, of those that this version of transformers has."""
    wanted: dict[str, object] = {"max_batch_tokens": 1_024, "use_cuda_graph": False}
    if DEVICE == "cpu":
        wanted |= {"num_blocks": 256, "max_batch_tokens": 128}
    config = transformers.ContinuousBatchingConfig(**wanted)
    return {"continuous_batching_config": config}


def ranks(folder: str, late: int) -> None:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    model = load_model(folder, tp_plan="auto")
    rank = int(os.environ["RANK"])
    prompts = [[(7 * n + k) % TOKENS for k in range(size)] for n, (size, _) in enumerate(RANKS_LOAD)]
    times: list[float] = []

    def forward_begins(*arguments: object) -> None:
        now = time.perf_counter()
        times.append(now)
        if rank == late and len(times) > 50:
            recent = sorted(b - a for a, b in zip(times[-41:-1], times[-40:], strict=True))
            time.sleep(0.2 * recent[len(recent) // 2])

    model.register_forward_pre_hook(forward_begins)
    until = time.monotonic() + float(os.environ.get("SERVING_RANKS_S", "45"))
    rounds = 0
    while True:
        model.generate_batch(prompts, generation_config=settings(RANKS_LOAD[0][1]), progress_bar=False, **batching())
        rounds += 1
        flag = torch.tensor([time.monotonic() < until], device="cuda", dtype=torch.int)
        torch.distributed.broadcast(flag, 0)
        if not flag.item():
            break
    print(json.dumps({"rank": rank, "rounds": rounds, "iterations": len(times)}))


def adapters() -> None:
    import drumline

    size = 2_048 if DEVICE == "cuda" else 128
    weights = torch.randn(size, size, device=DEVICE, dtype=DTYPE)
    running: dict[str, tuple[object, str, int]] = {}
    number, until = 0, time.monotonic() + SECONDS_OF_ADAPTERS
    while time.monotonic() < until:
        while len(running) < 32:
            name, adapter = f"a-{number}", ("plain", "slow", "other")[number % 3] if number // 16 % 2 else "plain"
            request = drumline.request(name, prompt_tokens=1, model="own", adapter=adapter, tenant=f"t{number % 2}")
            running[name] = (request, adapter, 20 + number % 40)
            number += 1
        with drumline.iteration(dict.fromkeys(running, 1)):
            for _, adapter, _ in running.values():
                for _ in range(4 if adapter == "slow" else 2):
                    weights @ weights
            if DEVICE == "cuda":
                torch.cuda.synchronize()
        for name, (request, adapter, left) in list(running.items()):
            request.token()
            if left <= 1:
                request.end("length")
                del running[name]
            else:
                running[name] = (request, adapter, left - 1)
    for request, _, _ in running.values():
        request.end("abort")
    print(json.dumps({"requests": number}))


if __name__ == "__main__":
    mode, *rest = sys.argv[1:]
    if mode == "model":
        write_model(Path(rest[0]))
    elif mode == "ranks":
        ranks(rest[0], int(rest[1]))
    else:
        adapters()
