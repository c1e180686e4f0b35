"""`minserve chat` as a person uses it, on the nano model and on a server that is simulated."""

from __future__ import annotations

import pytest
from live_server import Live

from minserve.serving.identity import KeyRing


@pytest.fixture
def chat(command_line):
    def run(said: str, *options: str):
        return command_line.run("chat", *options, input=said, env={"MINSERVE_API_KEY": ""})

    return run


def test_model_in_this_process_answers_and_quit_ends(chat):
    question = "Evidence: - The deposit of Umber Club is 40 EUR. What is the deposit of Umber Club?"
    done = chat(f"{question}\n/reset\n/quit\nnever asked\n", "--max-tokens", "24")
    assert done.returncode == 0 and "40 EUR" in done.stdout


def test_server_remembers_the_conversation_until_it_is_reset(chat):
    lengths = []

    def token(row):
        if row.output_position == 0:
            lengths.append(row.num_context_tokens)
        return ord("a") + row.output_position

    with Live(step_s=0.0, token=token) as live:
        done = chat("hello\nhello\n/reset\nhello\n", "--url", live.url, "--max-tokens", "3")
    assert done.returncode == 0 and done.stdout.splitlines() == ["abc"] * 3
    assert lengths[1] > lengths[0] == lengths[2]


def test_server_that_wants_a_key_is_told_of_by_the_name_of_the_option(chat):
    with Live(keys=KeyRing([])) as live:
        without = chat("x\n/quit\n", "--base-url", live.url)
        wrong = chat("x\n/quit\n", "--url", live.url, "--api-key", "mk-other")
    hint = "hint: give one with --key or in the variable MINSERVE_API_KEY"
    assert "error: the server asks for an API key" in without.stderr and hint in without.stderr
    assert "error: the server does not know this API key" in wrong.stderr


def test_errors_of_a_server_are_told_and_the_chat_goes_on(chat):
    with Live(step_s=0.0) as live:
        done = chat("x\n/quit\n", "--url", live.url, "--max-tokens", "9000")
        assert done.returncode == 0 and "maximum context length" in done.stderr
    done = chat("x\n/quit\n", "--url", live.url)
    assert done.returncode == 0 and "does not answer" in done.stderr
