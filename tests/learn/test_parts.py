"""`part`: what a learner sees, what is kept, and what the engine then runs."""

from __future__ import annotations

import json
import linecache
import os
import stat
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from itertools import count

import pytest
from variants.block_pool import POOL, POOL_OF_OWN_BOOKS
from variants.kv_bytes_per_token import ESTIMATE, ESTIMATE_BY_PARTS

from minserve.engine import Engine
from minserve.errors import ConfigError
from minserve.execution.simulated import SimulatedExecutor
from minserve.kv.blocks import BlockPool
from minserve.learn import hint, parts, parts_status
from minserve.learn.conformance import BROKEN, CRASHED, KEPT, NOT_YET, STOPPED, WAITING
from minserve.learn.experiments import lesson3
from minserve.learn.experiments.common import words
from minserve.learn.parts import SLOTS, get, part, restore, use
from minserve.learn.show import as_html, as_text
from minserve.learn.source import borrowed, source_of
from minserve.learn.workspace import Workspace

NUMBERS = count()


@pytest.fixture(autouse=True)
def workspace(tmp_path, monkeypatch):
    """An empty workspace under a path with a space and letters beyond ASCII; nothing live."""
    home = tmp_path / "Élève 学习 home"
    monkeypatch.setenv("MINSERVE_HOME", str(home))
    monkeypatch.setattr(parts, "_live", {})
    return home


def cell(text: str, **names):
    """Run a cell as a notebook does: its source is remembered, its names live together."""
    text = textwrap.dedent(text).strip() + "\n"
    file = f"<ipython-input-{next(NUMBERS)}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    scope = {"__name__": "__main__", **names}
    exec(compile(text, file, "exec"), scope)
    return scope


# -- what the check says


def test_green_part_is_kept_and_stays_with_the_reference_unless_asked(workspace, capsys):
    report = part("kv_bytes_per_token", cell(ESTIMATE)["estimate"])
    assert report.is_green
    assert "green: all 7 rules are kept" in capsys.readouterr().out
    [file] = (workspace / "parts/kv_bytes_per_token/versions").iterdir()
    assert "config.num_kv_heads" in file.read_text(encoding="utf-8")
    assert get("kv_bytes_per_token") is SLOTS["kv_bytes_per_token"].load_reference()


def test_mine_installs_the_very_object_that_was_checked():
    estimate = cell(ESTIMATE)["estimate"]
    part("kv_bytes_per_token", estimate, mine=True)
    assert get("kv_bytes_per_token") is estimate  # so that breakpoints in the cell are hit
    use("kv_bytes_per_token", "reference")
    assert get("kv_bytes_per_token") is not estimate
    assert get("kv_bytes_per_token", mine=True) is estimate


def test_unfinished_starter_says_not_yet_and_the_reference_runs(capsys):
    starter = """
        from minserve.learn import PoolBase
        class BlockPool(PoolBase):
            def allocate(self, num_tokens):
                raise NotImplementedError
    """
    report = part("block_pool", cell(starter)["BlockPool"], mine=True)
    assert not report.is_green
    assert {v.state for v in report.verdicts} == {NOT_YET, WAITING}
    assert get("block_pool", mine=True) is BlockPool
    out = capsys.readouterr().out
    assert "block_pool: not yet" in out and "✗" not in out
    assert "yours is not ready yet, so the reference runs" in out


def test_each_step_is_checked_as_soon_as_it_is_written(capsys):
    source = textwrap.dedent(POOL)
    source = source.replace("missing = max(0", "raise NotImplementedError\n        missing = max(0")
    report = part("block_pool", cell(source)["Pool"])
    states = {v.step: v.state for v in report.verdicts}
    assert states == {"allocate": KEPT, "append": NOT_YET, "share": WAITING, "release": WAITING}
    assert "5 rules kept so far; next: append" in capsys.readouterr().out


def test_broken_rule_comes_in_words_with_the_smallest_counterexample(capsys):
    wrong = POOL.replace("self.take(self.blocks_for(num_tokens))", "self.take(num_tokens // 4)")
    report = part("block_pool", cell(wrong)["Pool"])
    assert report.verdicts[0].state == BROKEN
    out = capsys.readouterr().out
    assert "tokens divided by the block size, rounded up" in out
    assert "pool = BlockPool(num_blocks=10, block_size=1)\n    a = pool.allocate(1)" in out
    assert "1 tokens need 1 block of 1; the table has 0" in out
    assert "Hint: 4 tokens fill one block of 4 exactly" in out
    assert 'hint("block_pool", step="allocate")' in out


def test_name_from_another_cell_is_reported_with_the_import_to_move(capsys):
    import numpy

    text = """
        def estimate(config, bytes_per_value):
            return int(np.prod([2, helper(config), BlockCopi]))
    """
    scope = cell(text, np=numpy, helper=cell("def helper(c): return 1")["helper"])
    report = part("kv_bytes_per_token", scope["estimate"])
    assert not report.verdicts and not report.is_green
    out = capsys.readouterr().out
    assert "line 2: `np` comes from another cell: move this import here:  import numpy as np" in out
    assert "`helper` comes from another cell: move its definition here" in out
    assert "the name `BlockCopi` is not defined anywhere" in out
    assert Workspace("kv_bytes_per_token").versions() == []


def test_suggested_import_is_the_one_that_the_lessons_write():
    from minserve.learn import PoolBase

    scope = cell("class Pool(PoolBase):\n    def allocate(self, n): return []", PoolBase=PoolBase)
    [line] = borrowed(source_of(scope["Pool"]), scope["Pool"])
    assert line.endswith("from minserve.learn import PoolBase")


def test_infinite_loop_is_stopped_and_shown_at_its_line(monkeypatch, capsys):
    quick = replace(SLOTS["kv_bytes_per_token"], limit_s=1.0)
    monkeypatch.setitem(SLOTS, "kv_bytes_per_token", quick)
    text = """
        def estimate(config, bytes_per_value):
            n = 0
            while n < 10:
                n * 2
            return n
    """
    began = time.monotonic()
    report = part("kv_bytes_per_token", cell(text)["estimate"])
    assert time.monotonic() - began < 15
    [verdict] = report.verdicts
    assert verdict.state == STOPPED and verdict.line in (3, 4)
    out = capsys.readouterr().out
    assert "still running after 1 s, so it was stopped: a loop that does not end?" in out


def test_part_that_is_held_up_longer_than_it_computes_is_not_taken_for_a_loop(monkeypatch):
    # A busy machine, or a frozen one: the clock runs, the processor is somebody else's.
    quick = replace(SLOTS["kv_bytes_per_token"], limit_s=1.0)
    monkeypatch.setitem(SLOTS, "kv_bytes_per_token", quick)
    held_up = 'bytes_per_value, held_up=__import__("time").sleep(1.5)):'
    text = ESTIMATE.replace("bytes_per_value):", held_up)
    assert text != ESTIMATE
    assert part("kv_bytes_per_token", cell(text)["estimate"]).is_green


def test_loop_that_swallows_every_exception_is_stopped_too(monkeypatch):
    quick = replace(SLOTS["kv_bytes_per_token"], limit_s=1.0)
    monkeypatch.setitem(SLOTS, "kv_bytes_per_token", quick)
    text = """
        def estimate(config, bytes_per_value):
            while True:
                try:
                    raise ValueError
                except BaseException:
                    pass
    """
    [verdict] = part("kv_bytes_per_token", cell(text)["estimate"]).verdicts
    assert verdict.state == STOPPED


def test_exception_is_shown_at_its_line_and_not_raised(capsys):
    text = """
        # a comment above

        def estimate(config, bytes_per_value):
            layers = config.layers
            return layers
    """
    report = part("kv_bytes_per_token", cell(text)["estimate"])
    first = report.verdicts[0]
    assert (first.state, first.line, first.code) == (CRASHED, 4, "layers = config.layers")
    assert capsys.readouterr().out.count("(line 4: layers = config.layers)") == 1


@pytest.mark.parametrize(
    "body", ["import os; os._exit(0)", "raise SystemExit", "raise KeyboardInterrupt", "input()"]
)
def test_code_that_ends_its_process_or_asks_is_reported_and_harmless(body):
    text = f"def estimate(config, bytes_per_value):\n    {body}\n"
    report = part("kv_bytes_per_token", cell(text)["estimate"])
    assert report.verdicts[0].state in (CRASHED, STOPPED)


def test_prints_are_shown_and_not_too_many(capsys):
    text = ESTIMATE.replace("values = 2", "print('shape', config.head_dim); values = 2")
    report = part("kv_bytes_per_token", cell(text)["estimate"])
    assert report.is_green
    assert report.printed[0] == "shape 2" and len(report.printed) <= 21
    assert "Your code printed:\n  shape 2" in capsys.readouterr().out


def test_breakpoint_does_not_hang_the_check():
    text = ESTIMATE.replace("values = 2", "breakpoint(); values = 2")
    assert part("kv_bytes_per_token", cell(text)["estimate"]).is_green


def test_cell_under_a_cell_magic_is_refused_with_what_to_do(capsys):
    # IPython runs such a cell from a string that it does not keep.
    scope = {"__name__": "__main__"}
    exec(compile(textwrap.dedent(ESTIMATE), "<timed exec>", "exec"), scope)
    assert not part("kv_bytes_per_token", scope["estimate"]).is_green
    assert "without %% on the first line" in capsys.readouterr().out


@pytest.mark.parametrize("target", [3, BlockPool(2, 2), [].append, type("Empty", (), {})])
def test_something_that_is_no_part_is_refused_in_words(target, capsys):
    assert not part("block_pool", target).is_green
    assert "not checked" in capsys.readouterr().out


def test_unknown_part_names_those_that_exist():
    with pytest.raises(ConfigError) as error:
        part("blokc_pool", POOL)
    assert "block_pool" in error.value.hint


def test_html_says_the_same_as_the_text_and_escapes_the_learners_words():
    text = "def estimate(config, bytes_per_value):\n    return '<script>alert(1)</script>'\n"
    report = part("kv_bytes_per_token", cell(text)["estimate"])
    suite = SLOTS["kv_bytes_per_token"].suite
    html = as_html(report, suite)
    assert "<script>" not in html and "&lt;script&gt;" in html
    assert 'role="status"' in html and "✗" in html
    for verdict in report.verdicts:
        if verdict.state == BROKEN:
            assert verdict.invariant in as_text(report, suite)


# -- what is kept


def test_source_is_kept_with_what_it_needs_and_without_the_rest(workspace):
    text = """
        from dataclasses import dataclass
        import os
        TWO = 2
        UNUSED = 3

        @dataclass
        class Shape:
            size: int

        def helper(config):
            return Shape(TWO * config.num_hidden_layers * config.num_kv_heads).size

        def estimate(config, bytes_per_value):
            # every vector
            return helper(config) * config.head_dim * bytes_per_value

        print("demonstration")
    """
    assert part("kv_bytes_per_token", cell(text)["estimate"]).is_green
    kept = Workspace("kv_bytes_per_token").current().text
    assert "TWO = 2" in kept and "@dataclass" in kept and "# every vector" in kept
    assert "UNUSED" not in kept and "import os" not in kept and "demonstration" not in kept


def test_versions_are_kept_once_each_and_can_be_restored(capsys):
    part("kv_bytes_per_token", cell(ESTIMATE)["estimate"], mine=True)
    part("kv_bytes_per_token", cell(ESTIMATE_BY_PARTS)["estimate"], mine=True)
    part("kv_bytes_per_token", cell(ESTIMATE_BY_PARTS)["estimate"], mine=True)
    workspace = Workspace("kv_bytes_per_token")
    assert [v.number for v in workspace.versions()] == [1, 2]
    assert workspace.current().number == 2
    restore("kv_bytes_per_token", 1)
    assert "one_vector" not in capsys.readouterr().out.split("version 1 is current again.")[1]
    assert workspace.current().number == 1
    with pytest.raises(ConfigError):
        restore("kv_bytes_per_token", 9)


def test_red_version_neither_replaces_nor_uninstalls_a_green_one(capsys):
    part("kv_bytes_per_token", cell(ESTIMATE)["estimate"], mine=True)
    broken = cell(ESTIMATE.replace("2 *", "3 *"))["estimate"]
    assert not part("kv_bytes_per_token", broken, mine=True).is_green
    assert "2 * config" in Workspace("kv_bytes_per_token").current().text
    assert "your version 1 stays what it was" in capsys.readouterr().out


def test_damaged_workspace_falls_back_and_says_so(workspace, monkeypatch, capsys):
    part("kv_bytes_per_token", cell(ESTIMATE)["estimate"], mine=True)
    monkeypatch.setattr(parts, "_live", {})
    [file] = (workspace / "parts/kv_bytes_per_token/versions").iterdir()
    file.write_text("# part: kv_bytes_per_token estimate\nimport not_there\n", encoding="utf-8")
    (workspace / "parts/kv_bytes_per_token/chosen.json").write_text("{broken", encoding="utf-8")
    assert get("kv_bytes_per_token", mine=True) is SLOTS["kv_bytes_per_token"].load_reference()
    assert "does not load" in capsys.readouterr().out
    parts_status()


def test_workspace_that_cannot_be_written_costs_only_the_keeping(tmp_path, monkeypatch, capsys):
    blocker = tmp_path / "a file, no folder"
    blocker.write_text("", encoding="utf-8")
    monkeypatch.setenv("MINSERVE_HOME", str(blocker))
    estimate = cell(ESTIMATE)["estimate"]
    report = part("kv_bytes_per_token", estimate, mine=True)
    assert report.is_green
    assert "could not be kept" in capsys.readouterr().out
    assert get("kv_bytes_per_token", mine=True) is estimate


def test_nothing_is_left_half_written(workspace):
    part("kv_bytes_per_token", cell(ESTIMATE)["estimate"], mine=True)
    files = [p for p in (workspace / "parts").rglob("*") if p.is_file()]
    assert not [p for p in files if p.name.startswith(".writing")]
    chosen = workspace / "parts/kv_bytes_per_token/chosen.json"
    assert json.loads(chosen.read_text(encoding="utf-8")) == {"version": 1, "use": "mine"}
    assert stat.S_ISREG(chosen.stat().st_mode)


def run_script(path, text: str) -> str:
    """A kernel of its own: a new Python process, started in a folder with a shadowing module."""
    path.write_text(textwrap.dedent(text), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(path)],
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=60,
        cwd=path.parent,
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_kernel_restart_loses_nothing_that_was_green(tmp_path):
    first = textwrap.dedent(ESTIMATE) + (
        "\nfrom minserve.learn import part\npart('kv_bytes_per_token', estimate, mine=True)\n"
    )
    assert "green" in run_script(tmp_path / "first.py", first)
    second = """
        from minserve.learn import get, parts_status
        from minserve.learn.conformance.kv_bytes_per_token import MODELS, config_of
        parts_status(lesson=3)
        mine = get("kv_bytes_per_token")
        print(mine.__module__, mine(config_of(*MODELS["SmolLM2-135M"]), 4))
    """
    out = run_script(tmp_path / "second.py", second)
    assert "green, version 1 of 1  yours" in out
    assert "minserve_part_estimate 46080" in out


def test_module_beside_the_notebook_shadows_nothing_in_the_check(tmp_path):
    (tmp_path / "json.py").write_text("raise RuntimeError('shadowed')", encoding="utf-8")
    script = tmp_path / "sub"
    script.mkdir()
    text = textwrap.dedent(ESTIMATE) + (
        "\nimport os\nfrom minserve.learn import part\n"
        f"os.chdir({str(tmp_path)!r})\n"
        "part('kv_bytes_per_token', estimate)\n"
    )
    assert "green" in run_script(script / "lesson.py", text)


def test_two_kernels_at_once_keep_both_versions():
    a, b = Workspace("block_pool"), Workspace("block_pool")
    a.keep("A", "class A: pass\n")
    b.keep("B", "class B: pass\n")
    assert sorted(v.name for v in Workspace("block_pool").versions()) == ["A", "B"]


# -- what the engine then runs


@pytest.mark.parametrize("source", [POOL, POOL_OF_OWN_BOOKS])
def test_learners_pool_runs_the_real_engine_step_for_step(source):
    requests = [words(f"r{n}", 20 + 9 * n, 20) for n in range(8)]
    fresh = [words(r.id, r.num_prompt_tokens, 20) for r in requests]
    assert part("block_pool", cell(source)["Pool"], mine=True).is_green
    reference = lesson3.serve(SimulatedExecutor(14, 16), requests)
    mine = lesson3.serve(SimulatedExecutor(14, 16), fresh, mine=True)
    assert mine == reference
    assert mine.num_preemptions > 0  # else blocks never ran out, and this shows little
    assert [r.output_token_ids for r in fresh] == [r.output_token_ids for r in requests]


def test_engine_notices_a_pool_that_leaks():
    from minserve.errors import BlockError
    from minserve.learn.pool import for_engine

    leaky = POOL.replace("self.free.append(block)", "pass")
    pool = for_engine(cell(leaky)["Pool"])(16, 16)
    engine = Engine(SimulatedExecutor(16, 16), pool=pool, prefix_caching=False)
    engine.submit(words("r", 20, 4), 0.0)
    while engine.step(0.0):
        pass
    with pytest.raises(BlockError):
        engine.check_integrity()


def test_hint_ladder_climbs_from_the_invariant_to_the_reference(capsys):
    for slot in SLOTS.values():
        for step in slot.suite.steps:
            rungs = []
            for rung in range(1, 6):
                hint(slot.name, rung, step=step)
                rungs.append(capsys.readouterr().out)
            assert len(set(rungs)) == 5
            assert slot.suite.rules[0].invariant in rungs[0] or len(slot.suite.steps) > 1
            assert f'hint("{slot.name}", 2' in rungs[0]
            assert "def " in rungs[4] and "def " not in rungs[1]
    with pytest.raises(ConfigError):
        hint("block_pool", 6)
    with pytest.raises(ConfigError):
        hint("block_pool", step="steal")


def test_importing_learn_takes_neither_torch_nor_matplotlib():
    program = (
        "import sys, minserve.learn; "
        "print([m for m in ('torch', 'matplotlib', 'IPython') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == "[]"
