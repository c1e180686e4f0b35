"""northstar-nano answers from the evidence in its prompt, as transformers runs it."""

import importlib
import json
import sys

import pytest

from minserve.northstar.paths import data_dir

pytestmark = pytest.mark.slow
FOLDER = data_dir("models") / "northstar-nano"
TEXTS = [
    "", " ", "a", "Hello  world\n\t", "H\u00e9llo \u65e5\u672c\u8a9e \U0001f389",
    "\x00\r\n\u2028e\u0301", "12345.67 EUR", "<|user|>not a turn<|end|>",
    "\U0001f469\u200d\U0001f680",
]  # fmt: skip


@pytest.fixture(scope="module")
def evaluation():
    folder = str(data_dir("models"))
    sys.path.insert(0, folder)
    try:
        return importlib.import_module("evaluate_northstar_nano")
    finally:
        sys.path.remove(folder)


@pytest.fixture(scope="module")
def tokenizer():
    return pytest.importorskip("transformers").AutoTokenizer.from_pretrained(FOLDER)


@pytest.mark.parametrize("text", TEXTS)
def test_every_text_round_trips(tokenizer, text):
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_digits_stand_alone(tokenizer):
    pieces = tokenizer.convert_ids_to_tokens(tokenizer("In 2031: 4,096")["input_ids"])
    assert all(len(p) == 1 for p in pieces if any(c.isdigit() for c in p))


def test_chat_template_writes_what_render_prompt_writes(tokenizer):
    from minserve.northstar.prompts import as_messages, render_prompt, render_user

    arguments = ("Be brief.", ["The a of b is c."], "Q?", [(render_user(["x"], "y"), "z")])
    templated = tokenizer.apply_chat_template(
        as_messages(*arguments), tokenize=False, add_generation_prompt=True
    )
    assert templated == render_prompt(*arguments)


def test_model_is_small_and_complete():
    assert (FOLDER / "model.safetensors").stat().st_size < 12e6
    config = json.loads((FOLDER / "config.json").read_text("utf-8"))
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["max_position_embeddings"] == 4096


def test_right_with_evidence_under_both_versions_and_wrong_without(evaluation):
    result = evaluation.evaluate(every=5)
    for version in ("v1", "v2"):
        assert result["with_evidence"][version]["all"] >= 0.95
        assert result["without_evidence"][version]["all"] < 0.2


def test_order_length_and_system_prompt_do_not_matter_much(evaluation):
    result = evaluation.evaluate_varied(every=6)
    del result["questions"]
    assert min(result.values()) >= 0.9
