"""What `import minserve` promises, and what its errors carry."""

from __future__ import annotations

import pickle
from importlib.metadata import version

import pytest

import minserve
from minserve import errors


def test_installed_version_is_the_packages_own():
    assert version("minserve") == minserve.__version__


@pytest.mark.parametrize("name", minserve.__all__)
def test_every_listed_name_resolves(name):
    assert getattr(minserve, name) is not None
    assert name in dir(minserve)


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Engin'"):
        _ = minserve.Engin


def test_every_error_is_a_minserve_error_with_one_line_and_a_hint():
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    assert len(kinds) == 11
    for kind in kinds:
        error = kind("max_tokens is 0", hint="ask for at least 1 token")
        assert isinstance(error, errors.MinserveError)
        assert (str(error), error.hint) == ("max_tokens is 0", "ask for at least 1 token")


def test_hint_survives_a_process_boundary():
    sent = errors.RequestTooLarge("9,000 tokens", hint="shorten the prompt")
    received = pickle.loads(pickle.dumps(sent))
    assert type(received) is errors.RequestTooLarge
    assert (str(received), received.hint) == ("9,000 tokens", "shorten the prompt")
