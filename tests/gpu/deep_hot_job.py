"""A Hugging Face job with a slow function of its own: deep_hot_job.py STEPS. Knows nothing of drumline.

A tiny model with random weights and tokens; after each optimizer step `planted_slow_norm` launches many small kernels.
Prints the number of each tenth step; ends after STEPS, or once the file of HOT_END exists.
"""

import os
import sys
import tempfile
from pathlib import Path

import torch
import transformers

TOKENS, LENGTH, BATCH = 1_000, 64, 4
#: Small kernels of a step: several times those of the model.
PLANTED = int(os.environ.get("HOT_PLANTED", "1500"))
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
table = torch.ones(4096, device=DEVICE)


class Rows(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 1 << 18

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        ids = torch.randint(0, TOKENS, (LENGTH,))
        return {"input_ids": ids, "labels": ids}


def planted_slow_norm() -> None:
    """Do in many small kernels what one could do."""
    for _ in range(PLANTED):
        table.mul_(0.999)


class Steps(transformers.TrainerCallback):
    def on_step_end(self, args, state, control, **named):
        planted_slow_norm()
        if state.global_step % 10 == 0:
            print(f"step {state.global_step}", flush=True)
        control.should_training_stop = Path(os.environ.get("HOT_END", "/nowhere")).exists()
        return control


def main() -> None:
    config = transformers.GPT2Config(vocab_size=TOKENS, n_positions=LENGTH, n_embd=64, n_layer=2, n_head=2)
    with tempfile.TemporaryDirectory() as folder:
        settings = transformers.TrainingArguments(
            folder, max_steps=int(sys.argv[1]), per_device_train_batch_size=BATCH, report_to=[], save_strategy="no",
            logging_strategy="no", disable_tqdm=True, use_cpu=DEVICE == "cpu",
        )  # fmt: skip
        model = transformers.GPT2LMHeadModel(config)
        transformers.Trainer(model, settings, train_dataset=Rows(), callbacks=[Steps()]).train()


main()
