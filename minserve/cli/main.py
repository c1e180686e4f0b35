"""The `minserve` command: one screen that lists the commands, and one place that reports errors."""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
from typing import Annotated, NoReturn

# NOTE: must be set before torch loads. Threads that spin for long slow a shared machine several
# times; some 20 us of it (2,000 turns) spare each small operation a wake-up of 100 us.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("GOMP_SPINCOUNT", "2000")

# Ctrl-C while all the commands are imported ends the process, without a stack trace.
_OURS = (
    threading.current_thread() is threading.main_thread()
    and signal.getsignal(signal.SIGINT) is signal.default_int_handler
)
if _OURS:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import typer  # noqa: E402

from minserve import __version__  # noqa: E402
from minserve.cli.arena import arena  # noqa: E402
from minserve.cli.bench import bench  # noqa: E402
from minserve.cli.cache import cache  # noqa: E402
from minserve.cli.calibrate import calibrate  # noqa: E402
from minserve.cli.capacity import capacity  # noqa: E402
from minserve.cli.chat import chat  # noqa: E402
from minserve.cli.cluster import cluster  # noqa: E402
from minserve.cli.demo import demo  # noqa: E402
from minserve.cli.estimate import estimate  # noqa: E402
from minserve.cli.gate import gate  # noqa: E402
from minserve.cli.gateway import gateway  # noqa: E402
from minserve.cli.generate import generate  # noqa: E402
from minserve.cli.jobs import jobs  # noqa: E402
from minserve.cli.keys import keys  # noqa: E402
from minserve.cli.labs import check, lab  # noqa: E402
from minserve.cli.loadtest import loadtest  # noqa: E402
from minserve.cli.models import models  # noqa: E402
from minserve.cli.parts import parts  # noqa: E402
from minserve.cli.progress import progress  # noqa: E402
from minserve.cli.replay import replay  # noqa: E402
from minserve.cli.scenario import scenario  # noqa: E402
from minserve.cli.serve import serve  # noqa: E402
from minserve.cli.simulate import simulate  # noqa: E402
from minserve.cli.top import top  # noqa: E402
from minserve.cli.trace import trace  # noqa: E402
from minserve.cli.worker import worker  # noqa: E402
from minserve.errors import MinserveError  # noqa: E402

if _OURS:
    signal.signal(signal.SIGINT, signal.default_int_handler)

app = typer.Typer(
    name="minserve",
    help="An LLM inference engine that you build, break and measure.\n\n"
    "Start with `minserve replay --demo`, or ask how many requests fit in memory with "
    "`minserve estimate`. Each command's --help has examples to copy.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (capacity, loadtest, simulate):  # --goodput ttft:500 tpot:50, as people know it
    app.command(context_settings={"allow_extra_args": True})(command)
for command in (
    arena,
    calibrate,
    chat,
    check,
    estimate,
    gateway,
    generate,
    models,
    progress,
    replay,
    scenario,
    serve,
    top,
    trace,
):
    app.command()(command)
app.command()(gate)
app.add_typer(bench, name="bench")
app.add_typer(cache, name="cache")
app.add_typer(cluster, name="cluster")
app.add_typer(demo, name="demo")
app.add_typer(jobs, name="jobs")
app.add_typer(keys, name="keys")
app.add_typer(lab, name="lab")
app.add_typer(parts, name="parts")
app.command()(worker)


def show_version(wanted: bool) -> None:
    """Print the version and end, before any command is asked for."""
    if wanted:
        print(f"minserve {__version__}")
        raise typer.Exit


@app.callback(no_args_is_help=True)
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Print it.")
    ] = False,
) -> None:
    """Build, break and measure an LLM inference engine."""


_FILES = {  # what a path of the user's may be refused for, and what to do about it
    errno.ENOENT: "check the path; its folder must be there and take new files",
    errno.EACCES: "you may not read or write there: choose another place",
    errno.EPERM: "you may not read or write there: choose another place",
    errno.EROFS: "nothing can be written there: choose another place",
    errno.EISDIR: "give a file",
    errno.ENOTDIR: "a part of this path is a file: choose another place",
    errno.EEXIST: "a file lies where a folder is needed: choose another place",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.ENOSPC: "the disk is full: make room, or write elsewhere",
    errno.EDQUOT: "your share of the disk is full: make room, or write elsewhere",
}


def main() -> None:
    """Run a command. A user's mistake is one clear line, a hint, and exit code 2."""
    try:
        sys.exit(app(prog_name="minserve", standalone_mode=False) or 0)
    except MinserveError as error:
        _fail(str(error), error.hint)
    except KeyboardInterrupt:
        _fail("stopped", code=130)
    except BrokenPipeError:  # somebody piped us into `head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        hint = _FILES.get(error.errno or 0, "")
        if not hint or os.environ.get("MINSERVE_DEBUG"):
            _internal(error)
        where = f"{error.filename}: " if error.filename is not None else ""
        _fail(f"{where}{error.strerror}", hint)
    except Exception as error:
        if type(error).__name__ == "Abort":
            _fail("stopped", code=130)
        if hasattr(error, "format_message"):  # a usage error, of whichever click typer carries
            context = getattr(error, "ctx", None)
            if not error.format_message():  # no command was given: its help has been shown
                sys.exit(2)
            _fail(error.format_message(), f"see {context.command_path} --help" if context else "")
        _internal(error)


def _internal(error: Exception) -> NoReturn:
    if os.environ.get("MINSERVE_DEBUG"):
        raise error
    what = f"{type(error).__name__}: {error}".splitlines()[0]
    _fail(
        f"minserve itself failed, which is a bug: {what}",
        "set MINSERVE_DEBUG=1 to see where, and report it",
        code=1,
    )


def _fail(message: str, hint: str = "", code: int = 2) -> NoReturn:
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    if hint:
        print(f"  hint: {hint}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
