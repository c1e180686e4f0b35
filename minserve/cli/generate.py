"""`minserve generate`: ask a model something, and see the words as they come."""

from __future__ import annotations

import sys
import time
from typing import Annotated, Any

import typer

from minserve.cli.console import Json, KvCacheDtype, Model, Quantization, print_json


def generate(
    prompt: Annotated[str, typer.Argument(help="What to say to the model; `-` reads from stdin.")],
    model: Model = "nano",
    max_tokens: Annotated[int, typer.Option(help="At most this many output tokens.")] = 64,
    temperature: Annotated[float, typer.Option(help="0 picks the likeliest token.")] = 0.0,
    top_k: Annotated[int, typer.Option(help="Sample among the k likeliest; 0 is off.")] = 0,
    top_p: Annotated[float, typer.Option(help="Sample among the likeliest of this mass.")] = 1.0,
    min_p: Annotated[float, typer.Option(help="Leave out what is less likely by this much.")] = 0.0,
    repetition_penalty: Annotated[float, typer.Option(help="Above 1 avoids repeating.")] = 1.0,
    presence_penalty: Annotated[
        float, typer.Option(help="Off once per token used; -2 to 2.")
    ] = 0.0,
    frequency_penalty: Annotated[float, typer.Option(help="Off each time used; -2 to 2.")] = 0.0,
    min_tokens: Annotated[int, typer.Option(help="Do not end before this many tokens.")] = 0,
    n: Annotated[
        int, typer.Option("--n", help="So many answers; the prompt is computed once.")
    ] = 1,
    logprobs: Annotated[
        int | None,
        typer.Option(help="In the JSON, each token's log-probability and so many likeliest."),
    ] = None,
    speculate: Annotated[
        str, typer.Option(help="Guess tokens ahead: `ngram`, or the name of a smaller model.")
    ] = "",
    seed: Annotated[int, typer.Option(help="The same seed gives the same words.")] = 0,
    stop: Annotated[
        list[str] | None, typer.Option(help="End before this text; may be given several times.")
    ] = None,
    system: Annotated[str, typer.Option(help="A system prompt to put in front.")] = "",
    raw: Annotated[
        bool, typer.Option("--raw", help="Send the text as it is, without the chat template.")
    ] = False,
    adapter: Annotated[
        str | None, typer.Option(help="A LoRA adapter (PEFT folder) to run with: NAME=FOLDER.")
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            help="float32, bfloat16, float16, or auto: bfloat16 if the CPU computes in it. By "
            "default float32 on a CPU, 16 bits on a GPU."
        ),
    ] = None,
    kv_cache_dtype: KvCacheDtype = "auto",
    quantization: Quantization = "none",
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    blocks: Annotated[
        int | None, typer.Option(help="KV blocks of 16 tokens; by default as many as it needs.")
    ] = None,
    json: Json = False,
) -> None:
    r"""Generate text, one request on the engine. Text goes to stdout, figures to stderr.

    Several answers (`--n`) are printed when all of them have ended, an empty line between two.

    northstar-nano answers only from evidence in its prompt:

    - `minserve generate $'Evidence:\n- The deposit of Umber Club is 40 EUR.\nQuestion: What is
    the deposit of Umber Club?'`

    - `minserve generate "Why is the sky blue?" --model smollm2 --max-tokens 40`

    - `minserve generate "Hello" --model ./model.Q4_K_M.gguf --adapter tone=./tone-adapter`

    - `minserve generate "Once upon a time" --raw --temperature 0.8 --seed 7 --stop "."`

    - `minserve generate "A name for a cat:" --temperature 1 --n 3 --logprobs 2 --json`
    """
    from minserve.models.registry import resolve
    from minserve.models.tokenizer import Tokenizer
    from minserve.request import Request, SamplingParams

    sampling = SamplingParams(
        max_tokens=max_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        min_tokens=min_tokens,
        n=n,
        logprobs=logprobs,
        seed=seed,
        stop=tuple(stop or ()),
    )
    text = sys.stdin.read() if prompt == "-" else prompt
    folder = resolve(model)
    tokenizer = Tokenizer(folder)
    if raw:
        token_ids = tokenizer.encode(text)
    else:
        messages = [{"role": "system", "content": system}] if system else []
        token_ids = tokenizer.encode_chat([*messages, {"role": "user", "content": text}])
    adapters = _adapter(adapter)
    request = Request("generate", tuple(token_ids), sampling, adapter="".join(adapters))
    _check_context(request, folder)

    from minserve.engine import Engine
    from minserve.events import TokensProduced
    from minserve.execution.torch_executor import TorchExecutor

    began_s = time.perf_counter()
    needed = n * -(-request.max_total_tokens // 16)
    executor = TorchExecutor(
        folder,
        num_blocks=needed if blocks is None else blocks,
        dtype=dtype,
        device=device,
        adapters=adapters,
        kv_cache_dtype=kv_cache_dtype,
        quantization=quantization,
    )
    loaded_s = time.perf_counter()
    answers = {id: _Answer(tokenizer, request, shown=n == 1) for id in request.choice_ids}

    def is_stopped(choice: Request) -> bool:
        """Show the newest token's text; the engine asks this after each one."""
        return answers[choice.id].take_newest(choice, executor.eos_token_ids)

    speculation = _speculation(speculate, executor, needed, dtype)
    engine = Engine(executor, is_stopped=is_stopped, speculator=speculation)
    engine.log.listen(
        lambda event: (
            answers[event.request_id].logprobs.extend(event.logprobs)
            if isinstance(event, TokensProduced)
            else None
        )
    )
    started_s = time.perf_counter()
    engine.submit(request, 0.0)
    while engine.step(time.perf_counter() - started_s):
        pass
    texts = [answer.finish() for answer in answers.values()]
    if n > 1:
        print("\n\n".join(texts), flush=True)
    if request.finish_reason == "error":
        from minserve.errors import MinserveError

        raise MinserveError(f"generation failed: {request.error}")
    if speculation:
        share, speed = speculation.acceptance or 0.0, speculation.tokens_per_step or 1.0
        print(f"[{share:.0%} of guesses right, {speed:.2f} tokens per step]", file=sys.stderr)
    precision, load_s = executor.precision, loaded_s - began_s
    _report(list(answers.values()), model, precision, load_s, started_s, json)


class _Answer:
    """One answer as it comes: printed piece by piece where it is the only one."""

    def __init__(self, tokenizer, request, shown: bool) -> None:
        self.request, self.shown = request, shown
        self.tokenizer, self.detokenizer = tokenizer, tokenizer.detokenizer(request.sampling.stop)
        self.text = ""
        self.logprobs: list[Any] = []

    def take_newest(self, request, eos_token_ids: frozenset[int]) -> bool:
        """Take in the last token of `request`, which is this answer's; True at a stop string."""
        self.request = request
        last = request.output_token_ids[-1]
        if last not in eos_token_ids:
            self._add(self.detokenizer.append([last]))
        return self.detokenizer.matched_stop is not None

    def finish(self) -> str:
        """The whole text, with what a stop string that never came had held back."""
        self._add(self.detokenizer.finish())
        if self.shown:
            print(flush=True)
        return self.text

    def _add(self, piece: str) -> None:
        self.text += piece
        if self.shown:
            print(piece, end="", flush=True)

    def as_dict(self) -> dict:
        """Plain values; log-probabilities are natural, of the model before any sampling setting."""
        request = self.request

        def word(token_id: int) -> str:
            return self.tokenizer.decode([token_id], skip_special_tokens=False)

        found = {
            "text": self.text,
            "output_tokens": request.num_output_tokens,
            "output_token_ids": list(request.output_token_ids),
            "finish_reason": str(request.finish_reason),
        }
        if self.logprobs:
            found["logprobs"] = [
                {
                    "token": word(token_id),
                    "logprob": one.logprob,
                    "top": [{"token": word(i), "logprob": value} for i, value in one.top],
                }
                for token_id, one in zip(request.output_token_ids, self.logprobs, strict=True)
            ]
        return found


def _adapter(text: str | None) -> dict[str, str]:
    """NAME=FOLDER as the executor takes it."""
    from minserve.errors import ConfigError

    if text is None:
        return {}
    name, is_given, folder = text.partition("=")
    if not (name and is_given and folder):
        raise ConfigError(f"--adapter {text!r} is not NAME=FOLDER", "such as --adapter tone=./tone")
    return {name: folder}


def _speculation(name: str, executor, num_blocks: int, dtype: str | None):
    """What guesses tokens: nothing, n-grams, or the model of that name."""
    if not name:
        return None
    from minserve.execution.speculative import (
        DraftProposer,
        NgramProposer,
        Speculation,
        check_same_tokens,
    )

    if name == "ngram":
        return Speculation(NgramProposer())
    from minserve.execution.torch_executor import TorchExecutor

    draft = TorchExecutor(name, num_blocks=num_blocks + 1, dtype=dtype)
    check_same_tokens(executor.tokenizer, draft.tokenizer)
    return Speculation(DraftProposer(draft))


def _check_context(request, folder) -> None:
    """Refuse what cannot fit before any weight is loaded."""
    from minserve.errors import RequestTooLarge
    from minserve.models.config import ModelConfig

    limit = ModelConfig.from_folder(folder).max_position_embeddings
    if request.max_total_tokens > limit:
        raise RequestTooLarge(
            f"the prompt has {request.num_prompt_tokens} tokens, which with --max-tokens "
            f"{request.sampling.max_tokens} exceeds the context of {limit} tokens",
            "shorten the prompt or lower --max-tokens",
        )


def _report(answers, model, precision, load_s, started_s, json) -> None:
    # NOTE: a step's tokens carry the time at which it began; the wall clock knows when it ended.
    total_s = time.perf_counter() - started_s
    request, told = answers[0].request, [answer.as_dict() for answer in answers]
    count = sum(each["output_tokens"] for each in told)
    print(
        f"[{request.num_prompt_tokens} tokens in, {count} out in {total_s:.2f} s, "
        f"{count / total_s:.0f} tokens/s, ended by {request.finish_reason}; "
        f"model loaded in {load_s:.2f} s, {precision}]",
        file=sys.stderr,
    )
    if json:
        print_json(
            {
                **told[0],
                "model": model,
                "dtype": precision.dtype,
                "precision": str(precision),
                "prompt_tokens": request.num_prompt_tokens,
                "output_tokens": count,
                "choices": told,
                "load_s": load_s,
                "total_s": total_s,
                "tokens_per_s": count / total_s,
            }
        )
