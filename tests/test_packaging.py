"""The wheel and the sdist: built, installed away from the repository, and run there."""

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    """The folder with both, the wheel made from the sdist and not from the checkout."""
    pytest.importorskip("build", reason='needs pip install -e ".[test]"')
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return folder


@pytest.fixture(scope="module")
def run(dist, tmp_path_factory):
    """Runs the installed command far from the repository, whose own copy it must not find."""
    (wheel,) = dist.glob("*.whl")
    installed, home = tmp_path_factory.mktemp("installed"), tmp_path_factory.mktemp("home")
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target"]
    subprocess.run([*command, str(installed), str(wheel)], check=True, timeout=120)
    environment = os.environ | {"PYTHONPATH": str(installed), "MINSERVE_HOME": str(home)}

    def run(*arguments):
        return subprocess.run(
            [sys.executable, "-P", *arguments],
            cwd=home,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )

    found = run("-c", "import minserve; print(minserve.__file__)")
    assert found.stdout.startswith(str(installed)), found
    return run


def test_wheel_holds_the_package_its_data_and_types_and_nothing_else(dist):
    (wheel,) = dist.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0].split("-")[0] for name in names}
    assert tops == {"minserve"}
    assert "minserve/py.typed" in names
    assert any(name.startswith("minserve/_data/models/northstar-nano/") for name in names)
    assert wheel.stat().st_size < 20e6


def test_sdist_holds_the_licence_and_the_tests(dist):
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "README.md", "pyproject.toml", "tests/conftest.py"} <= names


def test_the_installed_command_estimates_generates_and_replays(run):
    estimate = run("-m", "minserve", "estimate", "--model", "nano", "--json")
    assert estimate.returncode == 0 and json.loads(estimate.stdout.splitlines()[-1])
    answer = run("-m", "minserve", "generate", "hello", "--model", "nano", "--max-tokens", "4")
    assert answer.returncode == 0, answer.stderr[-2000:]
    simulated = run("-m", "minserve", "simulate", "--requests", "20", "--json")
    assert simulated.returncode == 0, simulated.stderr[-2000:]


def test_the_installed_server_answers_over_http(run):
    """Serve, ask once over HTTP, stop: in a process that sees only the installed package."""
    program = """
import json, subprocess, sys, urllib.request
command = [sys.executable, "-P", "-m", "minserve", "serve", "--port", "0"]
server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
try:
    url = next(word for line in server.stdout for word in line.split() if word.startswith("http"))
    body = json.dumps({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}).encode()
    headers = {"content-type": "application/json"}
    call = urllib.request.Request(url.rstrip("/.,") + "/v1/chat/completions", body, headers)
    print(json.load(urllib.request.urlopen(call, timeout=60))["usage"]["completion_tokens"])
finally:
    server.terminate()
    server.wait(30)
"""
    done = run("-c", program)
    assert done.returncode == 0 and 1 <= int(done.stdout.split()[-1]) <= 4, done
