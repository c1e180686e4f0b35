"""Train northstar-nano: a small Llama that answers from the evidence in its prompt.

    python data/models/train_northstar_nano.py tokenizer            # writes the tokenizer
    python data/models/train_northstar_nano.py train --minutes 90   # resumes where it stopped
    python data/models/train_northstar_nano.py export               # checkpoint -> safetensors

Checkpoints go to ``checkpoints/`` (git-ignored) unless ``--checkpoint`` says otherwise. Material is
invented for every batch (northstar_tasks.py) from ``--seed`` and the step number. The curriculum
moves on when eight answers in ten are right; the learning rate is warm-up, constant, then linear
decay over the last part of the time given.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(ROOT), str(HERE)]

import northstar_tasks as tasks  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from northstar_model import CONFIG, END, PAD, Nano  # noqa: E402
from torch import nn  # noqa: E402

from minserve.northstar.prompts import CHAT_TEMPLATE  # noqa: E402

OUT = HERE / "northstar-nano"
CHECKPOINT = ROOT / "checkpoints" / "northstar-nano.pt"
SPECIALS = ["<|pad|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"]


# ------------------------------------------------------------------ tokenizer


def train_tokenizer(out: Path, seed: int) -> None:
    """Byte-level BPE: any text round-trips, digits stand alone, specials never merge."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    rng = random.Random(seed)
    system = (ROOT / "data/northstar/system_prompt.txt").read_text(encoding="utf-8")
    english = [p.read_text(encoding="utf-8") for p in (ROOT / "LICENSE", ROOT / "README.md")]
    tokenizer = Tokenizer(models.BPE(byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\d"), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=CONFIG["vocab_size"],
        special_tokens=SPECIALS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    texts = [*tasks.corpus_text(rng, 6000), *[system] * 300, *english * 20]
    tokenizer.train_from_iterator(texts, trainer)
    out.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(out / "tokenizer.json"))
    described = dict(
        tokenizer_class="PreTrainedTokenizerFast",
        model_max_length=CONFIG["max_position_embeddings"],
        pad_token="<|pad|>",
        eos_token="<|end|>",
        additional_special_tokens=SPECIALS[1:4],
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE,
    )
    (out / "tokenizer_config.json").write_text(json.dumps(described, indent=2) + "\n")
    print(
        f"tokenizer: {tokenizer.get_vocab_size()} tokens; the system prompt takes "
        f"{len(tokenizer.encode(system).ids)}"
    )


# ------------------------------------------------------------------ batches

# lines, turns, and the shares of: system prompt, follow-ups, reports; and of samples that are
# random pairs or facts listed again instead of a conversation
LEVELS = (
    dict(lines=(1, 4), turns=(3, 8), pairs=0.25, relist=0.45),
    dict(lines=(2, 6), turns=(3, 8), pairs=0.1, relist=0.3),
    dict(lines=(2, 8), turns=(2, 8), follow=0.2, system=0.2, relist=0.2),
    dict(lines=(2, 14), turns=(2, 8), follow=0.3, system=0.2, report=0.1, relist=0.05),
    dict(
        lines=(2, 14),
        turns=(2, 8),
        follow=0.35,
        system=0.3,
        report=0.2,
        relist=0.05,
        pairs=0.05,
        long=0.12,
    ),
)


class Batches:
    """Endless padded batches of about ``tokens`` tokens, reproducible from seed and step."""

    def __init__(self, tokenizer, seed: str, tokens: int) -> None:
        self.tokenizer, self.seed, self.tokens = tokenizer, seed, tokens
        self.system = (ROOT / "data/northstar/system_prompt.txt").read_text("utf-8").strip()
        self.ready: list = []

    def sample(self, rng: random.Random, level: dict):
        """(ids, weight of predicting each id)."""
        level = dict(level)
        pairs, relist = level.pop("pairs", 0.0), level.pop("relist", 0.0)
        if rng.random() < level.pop("long", 0.0):  # a long chat that adds evidence as it goes
            level |= dict(lines=(12, 40), turns=(6, 14), follow=0.8)
        chance = rng.random()
        if chance < pairs:
            return tasks.make_pairs(rng, range(len(SPECIALS), CONFIG["vocab_size"]))
        if chance < pairs + relist:
            segments = tasks.make_relist(rng, level["lines"])
        else:
            segments = tasks.make_sample(rng, shared_system=self.system, **level)
        ids, weights = [], []
        for (_, weight), encoded in zip(
            segments, self.tokenizer.encode_batch([s for s, _ in segments]), strict=True
        ):
            ids += encoded.ids
            weights += [weight] * len(encoded.ids)
        return ids, weights

    def next(self, step: int, level: int):
        """(ids, targets, weights), each [batch, length]."""
        if not self.ready:
            rng = random.Random(f"{self.seed}-{step}")
            levels = [LEVELS[level]] * 3 + [LEVELS[max(0, level - 1)]]
            pool, budget = [], self.tokens * 8
            while budget > 0:
                pool.append(self.sample(rng, rng.choice(levels)))
                budget -= len(pool[-1][0])
            pool.sort(key=lambda s: len(s[0]))
            rows: list = []
            for item in pool:
                if rows and (len(rows) + 1) * len(item[0]) > self.tokens:
                    self.ready.append(rows)
                    rows = []
                rows.append(item)
            self.ready.append(rows)
            rng.shuffle(self.ready)
        rows = self.ready.pop()
        length = max(len(ids) for ids, _ in rows)
        ids = torch.tensor([i + [PAD] * (length - len(i)) for i, _ in rows])
        weights = torch.tensor([w + [0.0] * (length - len(w)) for _, w in rows])
        return ids[:, :-1], ids[:, 1:], weights[:, 1:]


def answers_right(hits, weights):
    """(right, all) answers, teacher-forced: a run of weight-1 targets is right if every hit is."""
    answer = weights == 1.0
    starts = answer & ~F.pad(answer, (1, 0))[:, :-1]
    number = starts.flatten().cumsum(0).view_as(starts)[answer] - 1
    total = int(starts.sum())
    wrong = torch.zeros(total).index_add_(0, number, (~hits[answer]).float())
    return int((wrong == 0).sum()), total


# ------------------------------------------------------------------ training


def learning_rate(spent: float, minutes: float, step: int, decay: float) -> float:
    """Share of the peak rate: warm-up over 60 steps, constant, linear decay to the end."""
    left = max(0.0, 1 - spent / minutes)
    return min(1.0, (step + 1) / 60, max(0.02, left / decay))


def make_optimizers(model: Nano, rate: float) -> list:
    """Muon (Jordan, 2024) for the matrices of the blocks, AdamW for the rest.

    Measured once, from a random start and on noisy batches: near step 230 AdamW alone stood at
    loss 3.2, this pair at 1.9.
    """
    inner = [p for n, p in model.named_parameters() if p.dim() == 2 and "layers" in n]
    outer = [p for n, p in model.named_parameters() if not (p.dim() == 2 and "layers" in n)]
    return [
        torch.optim.Muon(inner, lr=rate, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(outer, lr=rate, betas=(0.9, 0.98), weight_decay=0.0, fused=True),
    ]


def train(rank: int, args) -> None:
    """One of ``args.workers`` processes, each with its own batches; gradients are averaged."""
    from tokenizers import Tokenizer

    if args.workers > 1:
        address = f"tcp://127.0.0.1:{args.port}"
        dist.init_process_group("gloo", address, rank=rank, world_size=args.workers)
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    tokenizer = Tokenizer.from_file(str(OUT / "tokenizer.json"))
    model = Nano()
    optimizers = make_optimizers(model, args.lr)
    batches = Batches(tokenizer, f"{args.seed}-{rank}", args.tokens)
    state = dict(step=0, level=0, seen=0, spent_s=0.0, config=CONFIG)
    if args.checkpoint.exists():
        saved = torch.load(args.checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        for optimizer, values in zip(optimizers, saved["optimizers"], strict=True):
            optimizer.load_state_dict(values)
        state = saved["state"]
        print(f"resumed at step {state['step']}, level {state['level']}")
    args.checkpoint.parent.mkdir(parents=True, exist_ok=True)
    parameters = list(model.parameters())
    start = saved_at = logged_at = time.monotonic()
    spent = recent = loss_sum = 0.0
    right = total = since = 0
    seen_at = state["seen"]
    while spent < args.minutes * 60:
        step = state["step"]
        rate = args.lr * learning_rate(spent, args.minutes * 60, step, args.decay)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate * (2 if optimizer is optimizers[0] else 0.5)
        ids, targets, weights = batches.next(step, state["level"])
        wanted = weights > 0
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(ids, wanted)
        logits = logits.float()
        losses = F.cross_entropy(logits, targets[wanted], reduction="none")
        loss = (losses * weights[wanted]).sum() / weights.sum()
        model.zero_grad()
        loss.backward()
        hits = torch.ones_like(wanted)
        hits[wanted] = logits.argmax(-1) == targets[wanted]
        now = time.monotonic()
        # NOTE: every worker decides from the same averages, so that none leaves the loop alone.
        measured = [*answers_right(hits, weights), ids.numel(), loss.item(), now - start]
        ok, n, seen, mean_loss, spent = average(parameters, measured, args.workers)
        nn.utils.clip_grad_norm_(parameters, 1.0)
        for optimizer in optimizers:
            optimizer.step()
        right, total, loss_sum, since = right + ok, total + n, loss_sum + mean_loss, since + 1
        if n:
            recent = 0.96 * recent + 0.04 * ok / n
        state["step"] += 1
        state["seen"] += int(seen * args.workers)
        if recent > args.promote and state["level"] < len(LEVELS) - 1:
            state["level"] += 1
            recent = 0.0
        if rank:
            continue
        if now - logged_at > args.log_s:
            speed = (state["seen"] - seen_at) / (now - logged_at)
            print(
                f"{(now - start) / 60:6.1f} min step {state['step']:6} level {state['level']} "
                f"loss {loss_sum / since:.4f} answers {right / max(1, total):.3f} "
                f"lr {rate:.2e} {speed:.0f} tok/s",
                flush=True,
            )
            right = total = since = 0
            loss_sum, seen_at, logged_at = 0.0, state["seen"], now
        if now - saved_at > 60:
            save(args.checkpoint, model, optimizers, state)
            saved_at = now
    state["spent_s"] += spent
    if rank == 0:
        save(args.checkpoint, model, optimizers, state)


def average(parameters: list, measured: list[float], workers: int) -> list[float]:
    """Average gradients, in place, and measured figures over all workers, in one exchange."""
    if workers == 1:
        return measured
    flat = torch.cat([p.grad.flatten() for p in parameters] + [torch.tensor(measured)])
    dist.all_reduce(flat)
    flat /= workers
    at = 0
    for p in parameters:
        p.grad.copy_(flat[at : at + p.numel()].view_as(p))
        at += p.numel()
    return flat[at:].tolist()


def save(path: Path, model: Nano, optimizers, state: dict) -> None:
    part = path.with_suffix(".part")
    torch.save(
        dict(
            model=model.state_dict(), optimizers=[o.state_dict() for o in optimizers], state=state
        ),
        part,
    )
    os.replace(part, path)


# ------------------------------------------------------------------ export


def export(checkpoint: Path, out: Path, seed: int) -> None:
    """Write config, generation config and float16 weights as transformers reads them."""
    from safetensors.torch import save_file

    torch.manual_seed(seed)
    model = Nano()
    if checkpoint.exists():
        model.load_state_dict(torch.load(checkpoint, weights_only=True)["model"])
    else:
        print(f"no checkpoint at {checkpoint}: exporting untrained weights")
    tensors = {f"model.{k}": v.half().contiguous() for k, v in model.state_dict().items()}
    out.mkdir(parents=True, exist_ok=True)
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    (out / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
    generation = dict(do_sample=False, eos_token_id=END, pad_token_id=PAD)
    (out / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
    size = (out / "model.safetensors").stat().st_size
    count = sum(v.numel() for v in tensors.values())
    print(f"exported {count:,} parameters, {size / 1e6:.1f} MB to {out}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("tokenizer", "train", "export"))
    parser.add_argument("--minutes", type=float, default=90.0, help="wall time to train")
    parser.add_argument("--checkpoint", type=Path, default=CHECKPOINT)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--workers", type=int, default=2, help="processes of one thread each")
    parser.add_argument("--port", type=int, default=29517, help="where the workers meet")
    parser.add_argument("--tokens", type=int, default=8192, help="tokens a batch")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--decay", type=float, default=0.3, help="share of the time that decays")
    parser.add_argument("--promote", type=float, default=0.8, help="share right to move on")
    parser.add_argument("--log-s", type=float, default=30.0)
    parser.add_argument("--heads", type=int, default=CONFIG["num_attention_heads"])
    args = parser.parse_args()
    CONFIG["num_attention_heads"] = args.heads
    CONFIG["head_dim"] = CONFIG["hidden_size"] // args.heads
    if args.what == "tokenizer":
        train_tokenizer(args.out, args.seed)
    elif args.what == "train":
        if args.workers == 1:
            train(0, args)
        else:
            torch.multiprocessing.spawn(train, (args,), nprocs=args.workers, daemon=True)
    else:
        export(args.checkpoint, args.out, args.seed)


if __name__ == "__main__":
    main()
