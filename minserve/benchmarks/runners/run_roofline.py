"""What this machine can do at most, measured in the same run: the roofline to judge by."""

import time

from serve_lines import serve


def load(settings):
    """Measures the same whatever the prompts are."""
    import torch
    from safetensors.torch import load_file

    torch.set_num_threads(settings["threads"])
    dtype = getattr(torch, settings["dtype"])
    weights = [
        tensor.to(dtype) for file in settings["weights"] for tensor in load_file(file).values()
    ]
    num_bytes = sum(w.numel() * w.element_size() for w in weights)
    source = torch.zeros(2**26, dtype=torch.float32)
    target = torch.zeros_like(source)
    a, b = torch.randn(1536, 1536), torch.randn(1536, 1536)

    def best_s(call, times=3):
        found = []
        for _ in range(times):
            began_s = time.perf_counter()
            call()
            found.append(time.perf_counter() - began_s)
        return min(found)

    def run(prompts, max_tokens):
        copy_s = best_s(lambda: target.copy_(source))
        return {
            "copy_bytes_per_s": 2 * source.nbytes / copy_s,
            "weight_bytes": num_bytes,
            "sum_of_weights_s": best_s(lambda: [w.sum() for w in weights]),
            "matmul_flops": 2 * 1536**3 / best_s(lambda: a @ b),
            "peak_flops": peak_flops(settings["threads"], best_s),
        }

    return run


def peak_flops(threads, best_s):
    """Float32 multiply-adds of all threads, whose data never leaves a core's first cache; None
    without Numba.
    """
    from minserve.models import jit

    if not jit.is_available():
        return None
    import numpy as np

    from minserve.models.micro_kernel import MOST_ROWS, PANEL, multiply_panel

    prange, size, times = jit.require().prange, 128, 20_000

    @jit.kernel("void(f4[:,::1], f4[:,:,::1], f4[::1], f4[:,:,::1], i8)")
    def multiply(x, panel, scales, out, times):
        for thread in prange(len(out)):
            for _ in range(times):
                multiply_panel(x, 0, len(x), panel, 0, scales, out[thread])

    x, panel, scales, out = (
        np.ones(shape, np.float32)
        for shape in ((MOST_ROWS, size), (1, size, PANEL), (PANEL,), (threads, MOST_ROWS, PANEL))
    )
    jit.use_threads(threads)
    operations = 2 * threads * times * MOST_ROWS * size * PANEL
    return operations / best_s(lambda: multiply(x, panel, scales, out, times))


def versions():
    """Of what computes."""
    import torch

    return {"torch": torch.__version__}


serve(load, versions)
