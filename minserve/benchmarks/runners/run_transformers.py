"""transformers' generate: left-padded batches of 16, each running to its longest request."""

from serve_lines import serve

BATCH_SIZE = 16


def load(settings):
    """Whole batches, as generate takes them."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(settings["threads"])
    model = AutoModelForCausalLM.from_pretrained(
        settings["model"], dtype=getattr(torch, settings["dtype"])
    ).eval()

    @torch.inference_mode()
    def run(prompts, max_tokens):
        outputs = []
        for start in range(0, len(prompts), BATCH_SIZE):
            batch, most = (x[start : start + BATCH_SIZE] for x in (prompts, max_tokens))
            width = max(map(len, batch))
            ids = torch.tensor([[0] * (width - len(p)) + list(p) for p in batch])
            mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in batch])
            out = model.generate(
                input_ids=ids,
                attention_mask=mask,
                do_sample=False,
                max_new_tokens=max(most),
                eos_token_id=-1,
                pad_token_id=0,
            )[:, width:].tolist()
            outputs += [row[:n] for row, n in zip(out, most)]  # noqa: B905
        return {"outputs": outputs}

    return run


def versions():
    """Of what computes."""
    import torch
    import transformers

    return {"transformers": transformers.__version__, "torch": torch.__version__}


serve(load, versions)
