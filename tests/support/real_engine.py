"""Real inference engines with a tiny random model on the CPU.

usage: real_engine.py model|vllm|scheduler|sglang|batching|generate FOLDER

Runs in a Python that has the engines, for test_real_engines.py.
"""

import os
import sys
import time

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


def run_asynchronous_scheduler(folder: str) -> None:
    """Run vLLM's scheduler of a GPU, which the CPU's engine does not use: the model's tokens are made up."""
    import torch
    from vllm import SamplingParams
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.outputs import ModelRunnerOutput
    from vllm.v1.request import Request
    from vllm.v1.structured_output import StructuredOutputManager

    options = {"max_model_len": 1_024, "max_num_seqs": 16, "dtype": "float32", "enable_prefix_caching": False}
    config = EngineArgs(model=folder, **options).create_engine_config()
    config.scheduler_config.async_scheduling = True
    config.cache_config.num_gpu_blocks = 1_000
    block = FullAttentionSpec(block_size=16, num_kv_heads=2, head_size=32, dtype=torch.float32)
    cache = KVCacheConfig(num_blocks=1_000, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], block)])
    scheduler = AsyncScheduler(config, cache, StructuredOutputManager(config), block_size=16)
    for number in range(1, 30):
        sampling = SamplingParams(max_tokens=TOKENS, stop_token_ids=[7])
        sampling.update_from_generation_config({}, eos_token_id=1)
        scheduler.add_request(Request(f"r{number}", list(range(10, 10 + number)), sampling, None))
    under_way = [scheduler.schedule()]
    while under_way:
        if scheduler.requests and (batch := scheduler.schedule()).total_num_scheduled_tokens:
            under_way.append(batch)
        time.sleep(0.002)
        batch = under_way.pop(0)
        names = list(batch.num_scheduled_tokens)
        # Every third request is stopped by a token, which a batch that is chosen before cannot know.
        sampled = [[7 if int(name[1:]) % 3 == 0 and len(under_way) else 9] for name in names]
        places = {name: at for at, name in enumerate(names)}
        scheduler.update_from_output(batch, ModelRunnerOutput(names, places, sampled))


def import_sglang() -> None:
    """Import SGLang's scheduler, which runs on GPUs only; print the methods that drumline has joined."""
    from sglang.srt.managers.scheduler import Scheduler

    codes = {name: getattr(getattr(Scheduler, name), "__code__", None) for name in dir(Scheduler)}
    print(*sorted(name for name, code in codes.items() if code and code.co_filename.endswith("seams.py")))


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
    elif how == "sglang":
        import_sglang()
    elif how == "scheduler":
        run_asynchronous_scheduler(path)
    else:
        run_transformers(path, batching=how == "batching")
