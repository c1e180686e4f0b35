"""Ours, through the public engine."""

from serve_lines import now_rss_bytes, serve


def load(settings):
    """Continuous batching without prefix reuse: the prompts share nothing."""
    import torch

    from minserve.engine import Engine
    from minserve.execution.step_times import StepTimes
    from minserve.execution.torch_executor import TorchExecutor
    from minserve.request import Request, SamplingParams
    from minserve.scheduling.batching import ContinuousBatching

    torch.set_num_threads(settings["threads"])
    rss_after_imports = now_rss_bytes()
    executor = TorchExecutor(
        settings["model"],
        num_blocks=settings["kv_tokens"] // 16,
        dtype=settings["dtype"],
        quantization=settings["quantization"],
        kv_cache_dtype=settings["kv_cache_dtype"],
    )
    count = 0

    def run(prompts, max_tokens):
        nonlocal count
        policy = ContinuousBatching(
            token_budget=settings["token_budget"], max_running=settings["max_running"]
        )
        engine = Engine(executor, policy, prefix_caching=False)
        requests = []
        for prompt, most in zip(prompts, max_tokens):  # noqa: B905 (as the peers' scripts)
            count += 1
            sampling = SamplingParams(max_tokens=most, ignore_eos=True)
            requests.append(Request(f"r{count}", tuple(prompt), sampling))
            engine.submit(requests[-1], 0.0)
        with StepTimes(engine) as times:
            while engine.step(0.0):
                pass
        return {
            "outputs": [request.output_token_ids for request in requests],
            "num_steps": times.num_steps,
            "step_times_s": times.seconds(),
            "rss_after_imports": rss_after_imports,
            "weight_bytes": executor.weight_bytes,
            "kv_bytes": executor.kv_bytes_allocated,
        }

    return run


def versions():
    """Of what computes."""
    import torch

    import minserve

    return {"minserve": minserve.__version__, "torch": torch.__version__}


serve(load, versions)
