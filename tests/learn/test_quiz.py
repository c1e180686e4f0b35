"""Guesses and choices: an answer of any type gets words, never a stack trace."""

from __future__ import annotations

import pytest

from minserve.learn.quiz import QUIZZES, choose, predicted, solved


@pytest.mark.parametrize("answer", [None, "62", [62], True])
def test_what_is_no_number_is_not_an_answer_yet(capsys, answer):
    solved(answer, 62, "Divide.")
    assert "Not yet" in capsys.readouterr().out
    predicted(answer, 8.0, "seconds")
    assert "No guess yet" in capsys.readouterr().out


def test_a_figure_is_right_or_gets_the_hint(capsys):
    solved(62, 62, "Divide.")
    assert "right" in capsys.readouterr().out
    solved(61, 62, "Divide.")
    assert "Divide." in capsys.readouterr().out


@pytest.mark.parametrize("quiz", QUIZZES)
def test_every_choice_is_answered_and_only_the_right_one_with_yes(capsys, quiz):
    right, because = QUIZZES[quiz]
    for letter in because:
        choose(quiz, letter)
        assert capsys.readouterr().out.startswith("Yes" if letter == right else "Not quite")
    choose(quiz, 2)
    assert "none of" in capsys.readouterr().out
