"""What students get works, and gives nothing away."""

import subprocess
import sys

import pytest

from autograder import notebooks, scoring, student_copy
from minserve.errors import ConfigError

LABS = list(scoring.LABS.values())


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    folder = tmp_path_factory.mktemp("students") / "minserve"
    student_copy.make(folder)
    return folder


def test_nothing_of_ours_is_in_it(copy):
    assert student_copy.leaks(copy) == []
    names = {path.relative_to(copy).as_posix() for path in copy.rglob("*")}
    for ours in ("solutions", "autograder", "tests/grading", "docs/instructors.md", ".git", ".ci"):
        assert ours not in names
    assert {"minserve/engine.py", "README.md", "Makefile", "tests/kv", "lessons"} <= names
    for lab in LABS:
        (only,) = (copy / "labs" / lab.name).iterdir()
        given = notebooks.path_in(notebooks.LABS, lab.name)
        assert only.read_bytes() == given.read_bytes()


def test_no_test_in_it_needs_what_is_not_there(copy):
    for path in (copy / "tests").rglob("*.py"):
        assert not student_copy.OURS.search(path.read_text("utf-8")), path


def test_no_page_says_anything_to_instructors_and_no_link_is_dead(copy):
    text = (copy / "README.md").read_text("utf-8")
    assert "python -m autograder" not in text and "solutions/" not in text
    assert "## Without make" in text and "## For instructors" not in text
    makefile = (copy / "Makefile").read_text("utf-8")
    assert "\ndocs:" not in makefile and "\ntest: " in makefile and "\naudit: " in makefile
    for path in copy.rglob("*.md"):
        assert not student_copy.OURS.search(path.read_text("utf-8")), path
        assert "instructors" not in path.read_text("utf-8"), path
        for _, target, _ in student_copy.LINK.findall(path.read_text("utf-8")):
            assert (
                "://" in target or target.startswith("mailto:") or (path.parent / target).exists()
            ), (path, target)


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.name.partition("_")[0])
def test_a_leak_is_found_wherever_it_stands_and_however_it_is_indented(copy, lab):
    planted = copy / "minserve" / "leak.py"
    secrets = dict(student_copy.secrets_of(lab))
    kinds = {what.partition(" of ")[0].partition(",")[0] for what in secrets}
    assert kinds == {"the solution", "the model answer", "another solution"}
    try:
        for what, text in secrets.items():
            planted.write_text(f"# copied\n  {text.replace(' ', '   ', 20)}\n")
            assert any(what in leak for leak in student_copy.leaks(copy)), what
    finally:
        planted.unlink()


def test_a_copy_goes_into_a_new_folder_only(copy):
    with pytest.raises(ConfigError, match="not empty"):
        student_copy.make(copy)


def run(copy, *arguments):
    return subprocess.run(
        [sys.executable, *arguments], cwd=copy, capture_output=True, text=True, timeout=500
    )


def test_its_commands_find_its_labs(copy, tmp_path):
    script = "import sys; sys.path.insert(0, '.'); from minserve.cli.main import main; main()"
    listed = run(copy, "-c", script, "lab", "list")
    assert [line.split()[0] for line in listed.stdout.splitlines()] == sorted(scoring.LABS)
    checked = run(copy, "-c", script, "check", "lab3")
    assert checked.returncode == 1 and "of 17 automatic, 3 by hand" in checked.stdout
    assert str(copy) in run(copy, "-c", script, "lab", "list", "--json").stdout


@pytest.mark.slow
def test_its_own_tests_can_all_be_collected_and_its_core_passes(copy):
    quick = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow")
    collected = run(copy, *quick, "--collect-only")
    assert collected.returncode == 0, collected.stdout[-2000:]
    passed = run(
        copy,
        *quick,
        "tests/kv",
        "tests/scheduling",
        "tests/test_engine.py",
        "tests/learn/test_labs.py",
    )
    assert passed.returncode == 0, passed.stdout[-2000:]
    script = "import sys; sys.path.insert(0, '.'); import minserve; print(minserve.__file__)"
    assert str(copy) in run(copy, "-c", script).stdout
