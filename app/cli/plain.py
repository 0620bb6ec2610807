"""`paceline analyze TRACE --meta META --json`, parsed without any package.

Loading the full command line (help, completion, all options) takes longer than analyzing a small
trace. Every other command line, and every error, is left to the full parser.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

COMPLETES: Final = "_PACELINE_COMPLETE"


@dataclass(frozen=True, slots=True)
class PlainAnalysis:
    """A command line that only analyzes a trace."""

    trace: Path
    meta: Path | None
    as_json: bool

    def run(self) -> None:
        """Analyze the trace and print the report."""
        # Objects of loaded modules stay until the exit: garbage collections that search them take a
        # twentieth of the time of a small analysis.
        gc.disable()
        from app.cli.analyze import analyze_file  # noqa: PLC0415 - not for other commands

        gc.freeze()
        gc.enable()
        analyze_file(self.trace, self.meta, as_json=self.as_json, timeline=None)


def plain_analysis(arguments: Sequence[str]) -> PlainAnalysis | None:
    """Parse a plain command line; return None for every other command line."""
    if not arguments or arguments[0] != "analyze" or COMPLETES in os.environ:
        return None
    traces: list[Path] = []
    metas: list[Path] = []
    as_json = False
    rest = iter(arguments[1:])
    for argument in rest:
        if argument == "--json":
            as_json = True
        elif argument == "--meta":
            metas.append(Path(next(rest, "")))
        elif argument.startswith("-"):
            return None
        else:
            traces.append(Path(argument))
    if len(traces) != 1 or len(metas) > 1:
        return None
    if not all(os.access(path, os.R_OK) for path in (*traces, *metas)):
        return None
    if any(meta.is_dir() for meta in metas):
        return None
    return PlainAnalysis(traces[0], metas[0] if metas else None, as_json)
