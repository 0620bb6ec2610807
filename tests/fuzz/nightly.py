"""Damage many traces and recordings: ``make fuzz``, or ``make fuzz CASES=100000``.

Prints the numbers of analyzed and of refused cases by code; ends with status 1 and the seeds of all
other cases.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import traceback
from collections import Counter

from app.analysis.replay.engine.executors import warm_up
from tests.fuzz import recordings
from tests.fuzz.engine import damaged, outcome

SHOWN = 10


def judged(seed: int) -> tuple[int, str, str]:
    """Return the seed, the outcome of its case, and the traceback of an unexpected exception."""
    try:
        return seed, outcome(damaged(seed)), ""
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what is looked for
        return seed, f"raised {type(error).__name__}", traceback.format_exc()


def judged_recording(seed: int) -> tuple[int, str, str]:
    """Do the same for a recording of another program."""
    try:
        return seed, f"recording: {recordings.outcome(*recordings.damaged(seed))}", ""
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what is looked for
        return seed, f"recording: raised {type(error).__name__}", traceback.format_exc()


def main() -> int:
    """Run the cases on all processors."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--processes", type=int, default=multiprocessing.cpu_count())
    options = parser.parse_args()
    seeds = range(options.first, options.first + options.cases)
    found: Counter[str] = Counter()
    failures = 0
    # Everyday tests use the replay in NumPy; this run uses the compiled loops.
    with multiprocessing.Pool(options.processes, initializer=warm_up) as pool:
        for judge in (judged, judged_recording):
            for seed, end, trace in pool.imap_unordered(judge, seeds, chunksize=50):
                found[end] += 1
                if trace:
                    failures += 1
                    if failures <= SHOWN:
                        sys.stdout.write(f"seed {seed}, {judge.__name__}:\n{trace}\n")
    for end, count in found.most_common():
        sys.stdout.write(f"{count:8d}  {end}\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
