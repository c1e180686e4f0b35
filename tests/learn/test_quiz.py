"""Guesses and choices: an answer of any type gets words, never a stack trace."""

from __future__ import annotations

import pytest

from minserve.learn.quiz import QUIZZES, SUMS, choose, predicted, solved


@pytest.mark.parametrize("answer", [None, "62", [62], True])
def test_what_is_no_number_is_not_an_answer_yet(capsys, answer):
    solved("fits, decimal", answer)
    assert "Not yet" in capsys.readouterr().out
    predicted(answer, 8.0, "seconds")
    assert "No guess yet" in capsys.readouterr().out


@pytest.mark.parametrize("name", SUMS)
def test_a_figure_is_right_or_gets_the_hint(capsys, name):
    right, hint = SUMS[name]
    solved(name, right)
    assert capsys.readouterr().out == f"{right:g}: right.\n"
    solved(name, right + 1)
    assert hint in capsys.readouterr().out


def test_a_figure_may_be_worked_out_in_floating_point(capsys):
    solved("the mean wait", 0.9 / (1 - 0.9) * 0.1 * 0.5)  # 0.45, less a rounding
    assert capsys.readouterr().out == "0.45: right.\n"


@pytest.mark.parametrize("quiz", QUIZZES)
def test_every_choice_is_answered_and_only_the_right_one_with_yes(capsys, quiz):
    right, because = QUIZZES[quiz]
    for letter in because:
        choose(quiz, letter)
        assert capsys.readouterr().out.startswith("Yes" if letter == right else "Not quite")
    choose(quiz, 2)
    assert "none of" in capsys.readouterr().out
