"""``torchrun ... -m tangram.runtime PLAN --data PATH``: one rank of a run; without torchrun, all of them."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tangram.errors import TangramError
from tangram.plan.json_io import read_plan
from tangram.runtime.failures import failure_of, write_failure
from tangram.runtime.options import parse_arguments
from tangram.runtime.place import is_started_by_torchrun

FIRST_SPEAKS_S = 5.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs and returns the exit code: 2 for what the user can mend, 1 for everything else."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        plan_file, options = parse_arguments(given)
        plan = read_plan(plan_file)
        if not is_started_by_torchrun(os.environ):
            from tangram.runtime.start import start

            return start(plan_file, plan, options)
        from tangram.runtime.worker import work

        return work(str(plan_file), plan, options)
    except (Exception, KeyboardInterrupt) as error:
        return _tell(error)


def _tell(error: BaseException) -> int:
    """To the launcher, where there is one; else to the terminal.

    Most refusals are those of all ranks of a host. Its first one speaks, and torchrun then ends the others,
    which waited for that; if nothing ends them, they have a word of their own.
    """
    failure = failure_of(error)
    target = os.environ.get("TANGRAM_FAILURE")
    if target is not None:
        write_failure(Path(target), failure)
    elif not isinstance(error, TangramError):
        print(failure.details, file=sys.stderr)
    else:
        if os.environ.get("LOCAL_RANK", "0") != "0":
            time.sleep(FIRST_SPEAKS_S)
        place = f"{failure.where}: " if failure.where else ""
        print(f"error: {place}{failure.message}", file=sys.stderr)
        if failure.hint:
            print(f"  {failure.hint}", file=sys.stderr)
    return failure.exit_code


if __name__ == "__main__":
    sys.exit(main())
