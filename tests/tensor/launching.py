"""Starts the four ranks that run all checks, once for all tests."""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Final

from tests.real_jobs.launching import LaunchError, _processes, torch_python

RANKS: Final = 4
# Time limit in seconds; the checks take about 40 s, on a busy machine several times as long.
_LIMIT_S: Final = 400.0
_LOG_CHARS: Final = 4000

# The results of a check, one for each rank.
Found = list[Any]


def run_checks() -> dict[str, Found]:
    """Run all checks on four ranks, and return their results by name.

    Raises
    ------
    LaunchError
        A process failed, or they did not end in time.
    """
    with tempfile.TemporaryDirectory(prefix="paceline-tensor-") as name:
        directory = Path(name)
        log = directory / "log"
        command = [
            *(torch_python(), "-m", "tests.tensor.worker", "--directory", name),
            *("--time-limit-s", str(int(_LIMIT_S))),
        ]
        with _processes(command, log) as process:
            try:
                code = process.wait(_LIMIT_S)
            except subprocess.TimeoutExpired:
                raise LaunchError(f"the checks did not end in time\n{_said(log)}") from None
            if code:
                raise LaunchError(f"the checks failed\n{_said(log)}")
        found: list[dict[str, Any]] = [
            json.loads((directory / f"{rank}.json").read_text()) for rank in range(RANKS)
        ]
    return {check: [rank.get(check) for rank in found] for check in found[0]}


def _said(log: Path) -> str:
    return log.read_text(errors="replace")[-_LOG_CHARS:]
