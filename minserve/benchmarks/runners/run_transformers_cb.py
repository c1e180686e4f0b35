"""transformers' continuous batching, with our pool and our most tokens in a step.

By itself it takes six tenths of the memory for its pool, and masks for 8,192 tokens a step.
"""

from serve_lines import serve


def load(settings):
    """One manager for each run, as its documentation does."""
    import torch
    from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig

    torch.set_num_threads(settings["threads"])
    model = AutoModelForCausalLM.from_pretrained(
        settings["model"], dtype=getattr(torch, settings["dtype"])
    ).eval()
    config = GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0, max_new_tokens=256)
    page_size = 256  # its own default
    limits = ContinuousBatchingConfig(
        page_size=page_size,
        num_blocks=settings["kv_tokens"] // page_size,
        max_batch_tokens=settings["token_budget"],
        max_requests_per_batch=settings["max_running"],
        allow_block_sharing=False,
    )

    def run(prompts, max_tokens):
        with model.continuous_batching_context_manager(
            generation_config=config, continuous_batching_config=limits
        ) as manager:
            ids = [
                manager.add_request(list(p), max_new_tokens=n)
                for p, n in zip(prompts, max_tokens)  # noqa: B905
            ]
            done = {}
            while len(done) < len(ids):
                result = manager.get_result(timeout=1)
                if result is not None and result.is_finished():
                    done[result.request_id] = list(result.generated_tokens)
                elif not manager.is_running():
                    raise RuntimeError("the manager stopped early")
        return {"outputs": [done[i] for i in ids]}

    return run


def versions():
    """Of what computes."""
    import torch
    import transformers

    return {"transformers": transformers.__version__, "torch": torch.__version__}


serve(load, versions)
