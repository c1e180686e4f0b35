"""How Northstar's facts, questions and answers are worded, and how a prompt is rendered.

A fact is (attribute, entity, value). Every wording names the attribute and the entity BEFORE the
value, and an answer repeats both, so that a small model can answer by looking back into its prompt.
The entity ``None`` is the person who asks: "Your plan is ...".
"""

from __future__ import annotations

from collections.abc import Sequence

SYSTEM, USER, ASSISTANT, END = "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
"""The Jinja chat template of northstar-nano; ``render_prompt`` writes the same text."""

NOT_STATED = "not stated"
"""The value of a fact that the evidence lacks."""

STATEMENTS = (
    "The {attribute} of {entity} is {value}.",
    "For {entity}, the {attribute} is {value}.",
    "Under {entity}, the {attribute} is {value}.",
)
QUESTIONS = (
    "What is the {attribute} of {entity}?",
    "For {entity}, what is the {attribute}?",
    "Please tell me the {attribute} of {entity}.",
    "I need to know the {attribute} of {entity}.",
)
OWN_QUESTIONS = (
    "What is my {attribute}?",
    "Please tell me my {attribute}.",
    "I need to know my {attribute}.",
)


def state(attribute: str, entity: str | None, value: str, form: int = 0) -> str:
    """One evidence line, also the sentence that answers; ``form`` picks one of ``STATEMENTS``."""
    if entity is None:
        return f"Your {attribute} is {value}."
    return STATEMENTS[form].format(attribute=attribute, entity=entity, value=value)


def ask(attribute: str, entity: str | None, form: int = 0) -> str:
    """The question for one fact; ``form`` picks one of ``QUESTIONS`` or ``OWN_QUESTIONS``."""
    if entity is None:
        return OWN_QUESTIONS[form].format(attribute=attribute)
    return QUESTIONS[form].format(attribute=attribute, entity=entity)


def ask_next_attribute(attribute: str) -> str:
    """A follow-up about the same entity: only a model that reads the chat knows which."""
    return f"And the {attribute}?"


def ask_next_entity(entity: str) -> str:
    """A follow-up about the same attribute of another entity."""
    return f"And of {entity}?"


def ask_report(attributes: Sequence[str], entity: str | None) -> str:
    """A report task: one sentence for each attribute, in this order."""
    subject = "my account" if entity is None else entity
    return f"Write a report on {subject}: {', '.join(attributes)}."


def render_user(evidence: Sequence[str], question: str) -> str:
    """The content of a user message: the evidence lines as a list, then the question."""
    if not evidence:
        return f"Question: {question}"
    lines = "\n".join(f"- {line}" for line in evidence)
    return f"Evidence:\n{lines}\nQuestion: {question}"


def split_user(content: str) -> tuple[str, str]:
    """The evidence and the question of what `render_user` made; other text is all question.

    Both as they stand there, so that together they tell the content.
    """
    mark = "\nQuestion: "
    if not content.startswith("Evidence:\n") or mark not in content:
        return "", content
    evidence, _, question = content.rpartition(mark)
    return evidence + mark, question


def as_messages(
    system: str,
    evidence: Sequence[str],
    question: str,
    history: Sequence[tuple[str, str]] = (),
) -> list[dict[str, str]]:
    """The same conversation as chat messages (``role``, ``content``), for an HTTP client."""
    messages = [{"role": "system", "content": system}] if system else []
    for asked, answered in history:
        messages.append({"role": "user", "content": asked})
        messages.append({"role": "assistant", "content": answered})
    messages.append({"role": "user", "content": render_user(evidence, question)})
    return messages


def render_prompt(
    system: str,
    evidence: Sequence[str],
    question: str,
    history: Sequence[tuple[str, str]] = (),
) -> str:
    """The whole prompt in northstar-nano's chat format, ready to tokenise and to continue.

    Args:
        system: The system prompt; empty for none.
        evidence: Lines the answer may rest on; empty for none.
        question: The question of this turn.
        history: Earlier turns, oldest first, as (content of the user's message, answer). Pass what
            was sent then (``render_user``), and the prompt extends the earlier one token for token,
            so that a prefix cache can reuse it.
    """
    messages = as_messages(system, evidence, question, history)
    return "".join(f"<|{m['role']}|>{m['content']}{END}" for m in messages) + ASSISTANT
