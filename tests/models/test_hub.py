"""Fetching from Hugging Face, played by a server on this machine."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

COMMIT = "0123456789abcdef0123456789abcdef01234567"
OTHERS = {"consolidated.safetensors": b"the same again", "model.bin": b"pickle", "code.py": b"code"}


@pytest.fixture
def hub(tiny_folder):
    """The address of a hub with one model, tiny/llama, and what was asked of it."""
    files = {path.name: path.read_bytes() for path in tiny_folder.iterdir()} | OTHERS
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def answer(self, content: bytes, is_head: bool, **headers: str) -> None:
            self.send_response(200)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if not is_head:
                self.wfile.write(content)

        def do_GET(self, is_head: bool = False) -> None:
            path = self.path.partition("?")[0]
            name = path.rpartition("/")[2]
            if path.startswith("/api/models/tiny/llama"):
                siblings = [{"rfilename": name} for name in files]
                model = {"id": "tiny/llama", "sha": COMMIT, "siblings": siblings}
                if "/tree/" in path:
                    model = [
                        {"type": "file", "path": n, "size": len(c), "oid": "0" * 40}
                        for n, c in files.items()
                    ]
                return self.answer(json.dumps(model).encode(), is_head)
            if path.startswith("/tiny/llama/resolve/") and name in files:
                if not is_head:
                    asked.append(name)
                etag = hashlib.sha256(files[name]).hexdigest()
                headers = {"ETag": f'"{etag}"', "X_Repo_Commit": COMMIT}
                return self.answer(files[name], is_head, **headers)
            self.send_error(404)

        def do_HEAD(self) -> None:
            self.do_GET(is_head=True)

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", asked
    server.shutdown()
    server.server_close()


def ask(program: str, endpoint: str, home) -> subprocess.CompletedProcess:
    """huggingface_hub reads its settings when it is imported, so it runs in a fresh process."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HF_")}
    environment |= {"HF_ENDPOINT": endpoint, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1"}
    return subprocess.run(
        [sys.executable, "-c", "from minserve.models.registry import *\n" + program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_a_hub_id_fetches_weights_and_no_code(hub, tiny_folder, tmp_path):
    endpoint, asked = hub
    shape = ask("print(config_of('tiny/llama').num_hidden_layers)", endpoint, tmp_path)
    assert shape.stdout.strip() == "3", shape.stderr
    assert set(asked) == {"config.json", "generation_config.json"}
    done = ask("print(resolve('tiny/llama'))", endpoint, tmp_path)
    assert done.returncode == 0, done.stderr
    folder = done.stdout.strip()
    ours = {name for name in os.listdir(tiny_folder) if not name.startswith(".")}
    assert set(os.listdir(folder)) == ours and not set(OTHERS) & set(asked)
    for name in ours:
        with open(os.path.join(folder, name), "rb") as fetched:
            assert fetched.read() == (tiny_folder / name).read_bytes()
    asked.clear()
    assert ask("print(resolve('tiny/llama'))", endpoint, tmp_path).stdout.strip() == folder
    assert not asked  # it is in the cache


def test_an_id_that_the_hub_does_not_know_is_one_clear_error(hub, tmp_path):
    program = """
from minserve.errors import ModelNotFound
try: resolve('tiny/lama')
except ModelNotFound as error: print(error, error.hint)
"""
    done = ask(program, hub[0], tmp_path)
    assert "tiny/lama could not be fetched" in done.stdout and "check the name" in done.stdout
