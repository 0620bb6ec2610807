"""The command line, run in this process or in a separate one."""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
from pathlib import Path
from unittest import mock

from app.cli.main import main

Done = subprocess.CompletedProcess[str]


def paceline(*arguments: str | Path) -> Done:
    """Run the command in this process, where everything is already imported and compiled.

    An exception that the command does not handle is raised, and fails the test.
    """
    argv = ["paceline", *map(str, arguments)]
    out, err = io.StringIO(), io.StringIO()
    status = 0
    with (
        mock.patch.object(sys, "argv", argv),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as ended:
            status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return Done(argv, status, out.getvalue(), err.getvalue())


def paceline_process(*arguments: str | Path) -> Done:
    """Run the command as a user does: in a separate process, with two streams and an exit code."""
    return subprocess.run(  # noqa: S603 - this interpreter and our own module
        [sys.executable, "-m", "app.cli.main", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )
