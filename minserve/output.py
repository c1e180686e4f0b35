"""From token ids to text that may be sent: no half characters, no text past a stop string."""

from __future__ import annotations

from collections.abc import Callable, Sequence

REPLACEMENT = "\ufffd"
_GIVE_UP_TOKENS = 8  # a character is at most 4 bytes: after 8 tokens without one, it is not text


class Detokenizer:
    """Turns one request's output tokens into text as they come, in O(new tokens) each.

    A token may end inside a character, and a stop string may span tokens. So text is held back
    while it ends in an incomplete character, or in what may be the beginning of a stop string.
    The pieces that `append` and `finish` return, joined, are the decoded output, cut before the
    stop string that completes first. How the text was cut into tokens makes no difference.

    The window of tokens decoded again at each step follows vLLM's incremental detokenizer (2023):
    a token may decode differently behind another one, so the last settled tokens stay in view.

    Args:
        decode: token ids to text; incomplete bytes become U+FFFD. Special tokens are its affair.
        stop: strings that end the output; none may be empty.
    """

    def __init__(self, decode: Callable[[list[int]], str], stop: Sequence[str] = ()) -> None:
        self._decode = decode
        self._stop = tuple(stop)
        self._longest_stop = max(map(len, self._stop), default=0)
        self._window: list[int] = []  # settled tokens still in view, then those being completed
        self._num_settled = 0
        self._emitted = ""  # the window's text that has already left
        self._tokens_without_text = 0
        self._held = ""  # complete text that may be the beginning of a stop string
        self.matched_stop: str | None = None
        """The stop string that ended the output, once one has."""

    def append(self, token_ids: Sequence[int]) -> str:
        """Take new tokens; return the text that is now safe to send, often none.

        Returns nothing more once a stop string has matched.
        """
        text = "".join(self._complete_text(token) for token in token_ids)
        return self._before_stop(text)

    def finish(self) -> str:
        """The text still held back, now that no token follows. Call once, at the end."""
        text = self._before_stop(self._decode(self._window)[len(self._emitted) :])
        if self.matched_stop is None:
            text += self._held
        self._held = ""
        self._window, self._num_settled, self._emitted = [], 0, ""
        return text

    def _complete_text(self, token: int) -> str:
        self._window.append(token)
        text = self._decode(self._window)
        complete = text.rstrip(REPLACEMENT)
        self._tokens_without_text += 1
        # Bytes that will never be a character are shown as they are.
        give_up = self._tokens_without_text > _GIVE_UP_TOKENS
        if give_up:
            complete = text
        new = ""
        if give_up or complete.startswith(self._emitted):
            new = complete[len(self._emitted) :]
        if new:
            self._emitted = complete
            self._tokens_without_text = 0
        if complete == text and (new or give_up):
            self._window = self._window[self._num_settled :]
            self._num_settled = len(self._window)
            self._emitted = self._decode(self._window)
            self._tokens_without_text = 0
        return new

    def _before_stop(self, text: str) -> str:
        if self.matched_stop is not None:
            return ""
        if not self._stop:
            return text
        text = self._held + text
        # The stop that completes first wins, so the cut does not depend on how tokens fell.
        found = [(at + len(s), at, s) for s in self._stop if (at := text.find(s)) >= 0]
        if found:
            _, start, self.matched_stop = min(found)
            self._held = ""
            return text[:start]
        keep = self._possible_stop(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def _possible_stop(self, text: str) -> int:
        """The length of the longest end of `text` that begins a stop string."""
        for length in range(min(len(text), self._longest_stop - 1), 0, -1):
            if any(s.startswith(text[-length:]) for s in self._stop):
                return length
        return 0
