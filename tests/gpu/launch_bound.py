"""Workloads whose steps wait for the host, and their timing, for the jobs of prices.py and counts.py."""

import gc
import time
from collections.abc import Callable
from statistics import median

import torch


def ddp(rank: int) -> Callable[[], None]:
    """Return a step of a DDP transformer that the host launches more slowly than the GPU computes."""
    layer = torch.nn.TransformerEncoderLayer(768, 12, 3072, 0.0, batch_first=True, device="cuda")
    encoder = torch.nn.TransformerEncoder(layer, 12, enable_nested_tensor=False)
    model = torch.nn.parallel.DistributedDataParallel(encoder, device_ids=[rank])
    data = torch.randn(2, 256, 768, device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, foreach=True)

    def step() -> None:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(data).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()

    return step


def decode() -> Callable[[], None]:
    """Return a step that decodes a token by an eager transformer with a cache of keys and values."""
    width, heads, layers, cached = 1024, 16, 16, 256
    weights = [
        [torch.randn(width, out, device="cuda", dtype=torch.bfloat16) / 32 for out in (3 * width, width, 4 * width)]
        + [torch.randn(4 * width, width, device="cuda", dtype=torch.bfloat16) / 64]
        for _ in range(layers)
    ]
    caches = torch.zeros(layers, 2, 1, heads, cached, width // heads, device="cuda", dtype=torch.bfloat16)

    @torch.no_grad()
    def step() -> None:
        x = torch.ones(1, 1, width, device="cuda", dtype=torch.bfloat16)
        for (qkv, out, up, down), cache in zip(weights, caches, strict=True):
            q, k, v = (torch.rms_norm(x, (width,)) @ qkv).view(1, 1, 3, heads, -1).permute(2, 0, 3, 1, 4)
            keys = torch.cat((cache[0][:, :, 1:], k), 2)
            values = torch.cat((cache[1][:, :, 1:], v), 2)
            mixed = torch.nn.functional.scaled_dot_product_attention(q, keys, values)
            x = x + mixed.transpose(1, 2).reshape(1, 1, width) @ out
            x = x + torch.nn.functional.silu(torch.rms_norm(x, (width,)) @ up) @ down
        torch.cuda.synchronize()

    return step


def timed(step: Callable[[], None], steps: int, warm: int = 3) -> dict[str, float]:
    """Return the median time and the mean CPU time of a step; us."""
    gc.collect()
    for _ in range(warm):
        step()
    torch.cuda.synchronize()
    cpu, times = time.process_time(), []
    for _ in range(steps):
        begin = time.perf_counter()
        step()
        times.append(time.perf_counter() - begin)
    return {"us": 1e6 * median(times), "cpu_us": 1e6 * (time.process_time() - cpu) / steps}
