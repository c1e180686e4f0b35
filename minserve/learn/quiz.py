"""Guesses before runs, and choices that explain themselves: nothing here is graded."""

from __future__ import annotations

from collections.abc import Mapping


def predicted(guess: float | None, measured: float, what: str, close: float = 0.15) -> None:
    """Set a guess beside what was measured. `close` is the share within which it counts as near."""
    if guess is None:
        print(f"Measured: {measured:,g} {what}. (No guess yet: write one down before you run.)")
        return
    off = abs(guess - measured) / abs(measured) if measured else abs(guess)
    verdict = "spot on" if off < 0.01 else "close" if off <= close else "worth a second thought"
    print(f"You said {guess:,g}, measured: {measured:,g} {what}. That is {verdict}.")


def solved(answer: float | None, right: float, hint: str) -> bool:
    """Say whether a worked figure is right, without giving the right one away."""
    if answer is None:
        print("Not yet: put your figure in, and run again.")
    elif answer == right:
        print(f"{answer:,g}: right.")
    else:
        print(f"{answer:,g} is not it. {hint}")
    return answer == right


def choose(answer: str | None, right: str, because: Mapping[str, str]) -> None:
    """Say what a choice gets right or wrong. `because` explains every option by its letter."""
    options = ", ".join(because)
    if answer is None:
        print(f"Not yet: choose one of {options}, and run again.")
    elif (letter := answer.strip().lower()) not in because:
        print(f"{answer!r} is none of {options}.")
    else:
        print(f"{'Yes' if letter == right else 'Not quite'}: {because[letter]}")
