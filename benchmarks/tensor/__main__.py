"""Measured tensor-parallel workload control: ``make bench-tp`` writes docs/tensor-measured.md.

Stragglers are emulated by pacing: a product sleeps until it has taken its floating-point operations
times c times χ. The results of four ranks therefore do not depend on the number of cores.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from benchmarks.tensor import accuracy, following, speed
from benchmarks.tensor.job import EXPANDED, HEADS, HEALTHY_STEP_S, HIDDEN, RANKS
from paceline_client.tensor import Method

_DOCS: Final = Path(__file__).parents[2] / "docs"
_PAGE: Final = _DOCS / "tensor-measured.md"
_DATA: Final = "tensor-following.csv"
# Limits, in steps, until a plan is applied, and until it is withdrawn.
_WITHIN: Final = 2
_HEAVIEST: Final = "χ = 8"


def main() -> int:
    """Measure, write the page's sections, and return 1 if a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help="speed, following, accuracy; all of them if none")
    parser.add_argument("--seeds", type=int, default=accuracy.SEEDS)
    given = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if Path("/sys/class/net/lo").exists():
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    parts: dict[str, Callable[[], tuple[list[str], bool]]] = {
        "speed": lambda: speed_section(speed.measure()),
        "following": lambda: following_section(following.measure()),
        "accuracy": lambda: (accuracy_section(*accuracy.measure(given.seeds)), True),
    }
    unknown = set(given.parts) - set(parts)
    if unknown:
        parser.error(f"there is no part {', '.join(sorted(unknown))}")
    held = True
    for name in given.parts or parts:
        lines, as_aimed = parts[name]()
        held &= as_aimed
        write_section(name, lines)
        print("\n".join(lines))
    return int(not held)


def write_section(name: str, lines: Sequence[str]) -> None:
    """Replace the lines of a section of the page."""
    mark = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end of {name} -->)", re.DOTALL)
    text = _PAGE.read_text(encoding="utf-8")
    body = "\n".join(lines)
    _PAGE.write_text(mark.sub(lambda m: f"{m[1]}{body}\n{m[2]}", text), encoding="utf-8")


def speed_section(rows: Sequence[speed.Row]) -> tuple[list[str], bool]:
    """Return the table with the targets at χ = 8, and whether they are met."""
    heavy = [row for row in rows if row.case == _HEAVIEST]
    zero = [row for row in heavy if row.method is Method.ZERO]
    lossless = [row for row in heavy if row.gamma == 0 and row.method is not Method.NONE]
    targets = [
        ("ZERO with T_min, beyond the budget", _best(zero, "T_min)"), 8.0, 5.0),
        ("ZERO with T_avg, beyond the budget", _best(zero, "T_avg"), 8 / 2.75, 2.6),
        ("ZERO within γ = 0.25", _best(zero, "budget"), 4 / 3, 1.25),
        ("without loss, the best", max(row.speedup for row in lossless), 6.25, 4.0),
    ]
    errors = sorted(abs(row.measured_s / row.predicted_s - 1) for row in rows)
    lines = [
        (
            f"A transformer block (hidden {HIDDEN}, {HEADS} heads, {EXPANDED} expanded) on "
            f"{RANKS} ranks; its products take {1000 * HEALTHY_STEP_S:.0f} ms of a step on a "
            "healthy rank. Speed-up is against no action. The machine's load at the end was "
            f"{os.getloadavg()[0]:.0f} on {os.cpu_count()} processors; if it exceeds their number, "
            "single rows are too slow."
        ),
        "",
        f"| at {_HEAVIEST} | ideal | target | measured |",
        "| --- | --- | --- | --- |",
        *(
            f"| {name} | {ideal:.2f} × | {least:.2f} × | {speedup:.2f} × |"
            for name, speedup, ideal, least in targets
        ),
        "",
        (
            f"Predicted and measured step times differ by {errors[len(errors) // 2]:.1%} in the "
            f"median, {errors[-1]:.1%} at most."
        ),
        "",
        *speed.table(rows),
    ]
    return lines, all(reached >= least for _, reached, _, least in targets)


def _best(rows: Sequence[speed.Row], target: str) -> float:
    return max(row.speedup for row in rows if target in row.target)


def following_section(followed: following.Followed) -> tuple[list[str], bool]:
    """Return the section about a straggler that appears and disappears."""
    (_DOCS / _DATA).write_text(following.data(followed), encoding="utf-8")
    slow_s = followed.median_s(following.COMES, following.GOES, planned=False)
    planned_s = followed.median_s(following.COMES, following.GOES, planned=True)
    healthy_s = followed.median_s(0, following.COMES, planned=False)
    methods = {step.method.value for step in followed.steps if step.planned}
    lines = [
        (
            f"Rank {following.SLOW} becomes {following.SLOWDOWN:g} × slower at step "
            f"{following.COMES} and recovers at step {following.GOES}. The job allows no loss "
            "(`max_gamma=0`); the service runs with its embedded database. "
            f"[Step by step]({_DATA})."
        ),
        "",
        "| | |",
        "| --- | --- |",
        f"| healthy step | {1000 * healthy_s:.0f} ms |",
        f"| with the straggler, without a plan | {1000 * slow_s:.0f} ms |",
        f"| the same, under the plan ({', '.join(sorted(methods))}) | {1000 * planned_s:.0f} ms |",
        f"| slow steps before the plan was in force | {followed.slow_steps} |",
        f"| steps after the recovery before it was withdrawn | {followed.held_steps} |",
        f"| the controller, all ranks at once | {1000 * followed.controller_s:.2f} ms a step |",
    ]
    return lines, max(followed.slow_steps, followed.held_steps) <= _WITHIN


def accuracy_section(without: float, changes: Sequence[accuracy.Change]) -> list[str]:
    """Return the table of accuracy, and the changes that exceed the noise."""
    seeds = changes[0].seeds
    beyond = [f"{change.way} at γ = {change.gamma:g}" for change in changes if change.beyond_noise]
    return [
        (
            f"{accuracy.EPOCHS} epochs, {seeds} seeds; without resizing, {without:.1f} % of the "
            "test images are classified correctly. Change against the same seed without resizing, "
            "in percentage points: mean ± standard deviation over the seeds. A mean whose 95 % "
            "confidence interval contains zero is marked as noise."
        ),
        "",
        *accuracy.table(changes),
        "",
        f"More than noise: {', '.join(beyond)}." if beyond else "None is more than noise.",
    ]


if __name__ == "__main__":
    sys.exit(main())
