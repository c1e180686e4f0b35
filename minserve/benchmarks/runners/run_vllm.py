"""vLLM in one process, without prefix caching: the prompts share nothing."""

import os

from serve_lines import serve

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "4")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")


def load(settings):
    """vLLM's own scheduler settings, apart from the most sequences."""
    from vllm import LLM, SamplingParams

    llm = LLM(
        model=settings["model"],
        dtype=settings["dtype"],
        max_model_len=2048,
        max_num_seqs=settings["max_running"],
        enable_prefix_caching=False,
    )

    def run(prompts, max_tokens):
        params = [
            SamplingParams(temperature=0.0, max_tokens=n, ignore_eos=True) for n in max_tokens
        ]
        inputs = [{"prompt_token_ids": list(p)} for p in prompts]
        results = llm.generate(inputs, params, use_tqdm=False)
        return {"outputs": [list(r.outputs[0].token_ids) for r in results]}

    return run


def versions():
    """Of what computes."""
    from importlib.metadata import version

    import torch

    return {"vllm-cpu": version("vllm-cpu"), "torch": torch.__version__}


serve(load, versions)
