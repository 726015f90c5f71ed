"""Real inference engines with a tiny random model on the CPU: real_engine.py model|vllm|batching|generate FOLDER.

Runs in a Python that has the engines, for test_real_engines.py.
"""

import os
import sys

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
PROMPTS = ["the quick brown fox " * count for count in range(1, 30)]
TOKENS = 20


def write_model(folder: str) -> None:
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet)
    tokenizer.train_from_iterator(PROMPTS, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="</s>")
    fast.padding_side = "left"
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=512, hidden_size=64, intermediate_size=128, num_hidden_layers=2, head_dim=32,
                         num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=2_048)  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)


def run_vllm(folder: str) -> None:
    from vllm import LLM, SamplingParams

    # 32-bit floats: not every processor that has AMX lets a program use it.
    model = LLM(model=folder, enforce_eager=True, max_model_len=1_024, max_num_seqs=16, dtype="float32")
    model.generate(PROMPTS, SamplingParams(max_tokens=TOKENS, ignore_eos=True))


def run_transformers(folder: str, *, batching: bool) -> None:
    import torch
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    settings = {"max_new_tokens": TOKENS, "do_sample": False, "pad_token_id": 0}
    if not batching:
        same = tokenizer([PROMPTS[3]] * len(PROMPTS), return_tensors="pt")
        model.generate(**same, min_new_tokens=TOKENS, **settings)
        return
    options = transformers.ContinuousBatchingConfig(num_blocks=64, max_batch_tokens=64, use_cuda_graph=False)
    config = transformers.GenerationConfig(**settings, eos_token_id=-1)
    prompts = [tokenizer(prompt)["input_ids"] for prompt in PROMPTS]
    model.generate_batch(prompts, generation_config=config, continuous_batching_config=options)


if __name__ == "__main__":
    how, path = sys.argv[1:]
    if how == "model":
        write_model(path)
    elif how == "vllm":
        run_vllm(path)
    else:
        run_transformers(path, batching=how == "batching")
