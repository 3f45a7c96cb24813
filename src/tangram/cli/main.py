"""The entry point: runs a command and turns whatever goes wrong into one message and an exit code.

0    done
1    internal error: a bug
2    bad input: an option, a file, a name, or a plan that breaks a rule
3    the input is fine, and nothing fits
130  interrupted (plan then still prints the best plan so far)
141  whoever read the output went away (as the shell reports it for other programs)
"""

from __future__ import annotations

import errno
import gc
import os
import sys
from collections.abc import Sequence
from typing import TextIO

from tangram._version import VERSION
from tangram.cli.streams import ReaderGoneError, one_line
from tangram.errors import InfeasibleError, InternalError, TangramError

EXIT_INTERNAL, EXIT_USAGE, EXIT_INTERRUPTED, EXIT_PIPE = 1, 2, 130, 141

_NEW_OBJECTS = 200_000  # between two rounds of the garbage collector; some ten MiB


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code.

    Args:
        argv: Arguments without the program's name; by default those of the process.
    """
    _prepare_streams()
    # Nearly all that is made here, modules to begin with, is still there at the end: looking for garbage as
    # often as Python does by default takes a tenth of a short command.
    usual = gc.get_threshold()
    gc.set_threshold(_NEW_OBJECTS, *usual[1:])
    try:
        code = _run(sys.argv[1:] if argv is None else list(argv))
        sys.stdout.flush()
    except (BrokenPipeError, ReaderGoneError):
        _forget_stdout()
        return EXIT_PIPE
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except InternalError as error:
        return _bug(error)
    except TangramError as error:
        print(message_of(error), file=sys.stderr)
        return error.exit_code
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO):
            return _bug(error)
        print(f"error: stdout: {error.strerror}", file=sys.stderr)
        _forget_stdout()
        return EXIT_USAGE
    except Exception as error:
        return _bug(error)
    finally:
        gc.set_threshold(*usual)
        if argv is None:
            # The process ends; looking through all that it holds once more would take a tenth of a second.
            gc.freeze()
    return code


def message_of(error: TangramError) -> str:
    """Returns an error as people read it: what and where, then the fix, then the details.

    Names come from files, so each part is printed on one line of bounded length without control characters.
    """
    lines = [f"error: {error.where}: {error.message}" if error.where else f"error: {error.message}"]
    lines += [f"  {error.hint}"] if error.hint else []
    if isinstance(error, InfeasibleError):
        lines += [f"  {detail}" for detail in error.details]
        if error.repairs:
            lines.append("what would help, the best first:")
            lines += [f"  {idx}. {repair}" for idx, repair in enumerate(error.repairs, 1)]
    return "\n".join(map(one_line, lines))


def _run(argv: list[str]) -> int:
    # pydantic would scan all installed packages for plugins at the first use: tens of milliseconds and more.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    # Nothing here multiplies matrices; numpy's pool of threads would only cost time to start and to spin.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    import typer

    from tangram.cli.app import build_command

    try:
        argv = argv or ["--help"]
        code = build_command(argv[0]).main(argv, prog_name="tangram", standalone_mode=False)
    except typer.Abort:
        raise KeyboardInterrupt from None
    except Exception as error:
        if not _is_usage_error(error):
            raise
        print(_usage_message(error), file=sys.stderr)
        return EXIT_USAGE
    return code if isinstance(code, int) else 0


def _is_usage_error(error: Exception) -> bool:
    """Whether typer refuses what was typed; its base class has no name that old and new versions share."""
    return any(kind.__name__ == "ClickException" for kind in type(error).__mro__)


def _usage_message(error: Exception) -> str:
    """Of typer's own errors: a wrong option, a missing argument, a word where a number belongs."""
    text = error.format_message() if hasattr(error, "format_message") else str(error)
    context = getattr(error, "ctx", None)
    path = getattr(context, "command_path", "tangram")
    text = text.replace("Value error, ", "")  # of a validator that typer lets run
    text = text[:1].lower() + text[1:].rstrip(".")
    return one_line(f"error: {text}") + f"\n  see: {path} --help"


def _bug(error: Exception) -> int:
    import traceback

    traceback.print_exception(error)
    first_line = str(error).partition("\n")[0]
    print(
        f"internal error: {type(error).__name__}: {first_line}\n"
        f"  This is a bug in Tangram {VERSION}, not your mistake. Please report it in the project's issue "
        "tracker, with the command and the lines above.",
        file=sys.stderr,
    )
    return EXIT_INTERNAL


def _prepare_streams() -> None:
    """Neither a name that the terminal's encoding lacks nor a closed stream must end the program."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, _nowhere())
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def _forget_stdout() -> None:
    """Python flushes stdout once more at exit; let it do so into nothing."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(devnull, sys.stdout.fileno())
    except (OSError, ValueError):  # replaced by something that is no file
        sys.stdout = _nowhere()


def _nowhere() -> TextIO:
    return open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123
