"""`make real-jobs`: run the scenarios, print a table and, last, the number of right verdicts."""

from __future__ import annotations

import argparse
import signal
import sys
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from tests.real_jobs.comparing import pairs_of, side_by_side
from tests.real_jobs.judging import Judged, summary
from tests.real_jobs.launching import FORWARD_S, missing
from tests.real_jobs.running import AT_ONCE, JobRunner, judge_all
from tests.real_jobs.scenarios import REPRESENTATIVE, SCENARIOS

_TERMINATED: Final = 128 + signal.SIGTERM


def main() -> int:
    """Return 0 if the verdict on every scenario is right."""
    parser = argparse.ArgumentParser(prog="python -m tests.real_jobs", description=__doc__)
    parser.add_argument("scenarios", nargs="*", default=["*"], help="names or patterns: tpI-*")
    parser.add_argument("--representative", action="store_true", help="those of CI")
    parser.add_argument("--list", action="store_true", help="print what would run")
    parser.add_argument("--at-once", type=int, default=AT_ONCE, help="launches at a time")
    parser.add_argument("--forward-ms", type=float, default=1000 * FORWARD_S)
    parser.add_argument("--keep", type=Path, help="folder for recordings and truths")
    parser.add_argument("--hooked", action="store_true", help="recorded by the client's hooks")
    parser.add_argument(
        "--side-by-side", action="store_true", help="recorded by hand, then by the client's hooks"
    )
    arguments = parser.parse_args()
    chosen = [
        scenario
        for scenario in SCENARIOS.values()
        if any(fnmatchcase(scenario.name, pattern) for pattern in arguments.scenarios)
        and (not arguments.representative or scenario.name in REPRESENTATIVE)
    ]
    if arguments.list:
        print(*(scenario.name for scenario in chosen), sep="\n")  # noqa: T201
        return 0
    for reason in {missing(scenario.job.framework) for scenario in chosen} - {None}:
        print(reason, file=sys.stderr)  # noqa: T201
        return 2
    # SIGTERM ends the processes of the jobs too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_TERMINATED))
    ways = (False, True) if arguments.side_by_side else (arguments.hooked,)
    results = [
        judge_all(
            chosen,
            JobRunner(arguments.forward_ms / 1000, arguments.keep, hooked=hooked),
            at_once=arguments.at_once,
            tell=_tell,
        )
        for hooked in ways
    ]
    pairs = pairs_of(*results) if arguments.side_by_side else {}
    if pairs:
        print(*side_by_side(pairs), "", sep="\n")  # noqa: T201
    told = [result for results_of_way in results for result in results_of_way]
    print(*summary(told), sep="\n")  # noqa: T201
    alike = not any(pair.differences for pair in pairs.values())
    return 0 if alike and all(result.right for result in told) else 1


def _tell(result: Judged) -> None:
    told = "right" if result.right else "; ".join(result.wrong)
    print(f"{result.scenario.name}: {told}", file=sys.stderr)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
