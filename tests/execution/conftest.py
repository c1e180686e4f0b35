from __future__ import annotations

import pytest
from tiny_llama import write_checkpoint


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("tiny"))
