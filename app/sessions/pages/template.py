"""The pipeline template that the page of a session recommends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from app.analysis.mitigation.fixes import PlannedTemplate, WithheldTemplate
from app.analysis.report.document import Report
from app.plans.pages.parts import layer_ticks, milliseconds
from app.web.format import heat_color, listing, percent, rough_percent, seconds, times

# Below it a template is not worth a restart.
MIN_GAIN: Final = 0.02
# Workers within this of their peers are not called slow.
_SLOW: Final = 1.05
# Where a label finds no room behind its block, in per cent.
_LATE: Final = 84.0
# A proven gap below this rounds to nothing.
_EXACT: Final = 0.0005
_DARK: Final = 1.15


@dataclass(frozen=True, slots=True)
class PlacedStage:
    """A stage over the layers, in per cent of all of them; colored by its slowest worker."""

    number: int
    workers: str
    left: float
    width: float
    color: str
    label: str
    label_at: float
    anchor: str
    share: float
    text: str


@dataclass(frozen=True, slots=True)
class Side:
    """The division of the layers as it is, or as it is recommended."""

    word: str
    note: str
    stages: tuple[PlacedStage, ...]


@dataclass(frozen=True, slots=True)
class SessionTemplate:
    """The region; without `sides` the template is withheld, and `note` says why."""

    title: str
    note: str
    ticks: tuple[tuple[float, str], ...] = ()
    sides: tuple[Side, ...] = ()
    remarks: str = ""


def _proof(found: PlannedTemplate) -> str:
    if found.proven or (found.gap is not None and found.gap < _EXACT):
        return ", proven optimal for the measured times"
    if found.gap is None:
        return ""
    return f", at most {rough_percent(found.gap)} above the fastest possible for the measured times"


def session_template(report: Report) -> SessionTemplate | None:
    """Return the region of a report's page; None where there is nothing to say."""
    found = report.template
    if found is None:
        return None
    if isinstance(found, WithheldTemplate):
        return SessionTemplate("No template can be recommended", found.reason)
    gain = found.predicted_gain
    if gain < MIN_GAIN:
        return None
    now_s = _mean(report.step_times.simulated)
    layers, moved = found.layers, _moved(found)
    longest = max(found.stage_ms.today + found.stage_ms.template)
    today = list(range(len(layers.today)))
    proof = _proof(found)
    return SessionTemplate(
        title="Dividing the layers by what each worker can do saves "
        f"{'up to ' if found.at_most else ''}{percent(gain)} of every step",
        note="Layers of each stage now and in the recommended pipeline template, replayed on this "
        "session’s own durations; color: "
        "slowdown of the slowest worker of the stage",
        ticks=layer_ticks(sum(layers.today)),
        sides=(
            Side(
                "Now",
                f"{seconds(now_s)} a step",
                _placed(found, today, (layers.today, found.stage_ms.today), longest),
            ),
            Side(
                "Recommended",
                f"{seconds(found.predicted_step_time)} a step{proof}",
                _placed(
                    found,
                    found.worker_of_stage,
                    (layers.template, found.stage_ms.template),
                    longest,
                ),
            ),
        ),
        remarks=" ".join(
            part for part in (moved, _UP_TO if found.at_most else "", _MEMORY) if part
        ),
    )


_UP_TO: Final = (
    "The recording does not show what layers take apart from an embedding and a head, or whether "
    "a worker is slow or its stage is heavy: the gain may be less."
)
_MEMORY: Final = (
    "Whether the larger stages fit the memory is not checked: a trace does not say what layers "
    "need. One template serves all DP ranks."
)


def _moved(found: PlannedTemplate) -> str:
    moves = [
        f"stage {stage} gets those of today’s stage {worker}"
        for stage, worker in enumerate(found.worker_of_stage)
        if stage != worker
    ]
    return f"Workers move: {listing(moves)}." if moves else ""


def _placed(
    found: PlannedTemplate,
    workers: Sequence[int],
    side: tuple[Sequence[int], Sequence[float]],
    longest: float,
) -> tuple[PlacedStage, ...]:
    (counts, times_ms), speeds = side, found.speed_of_worker
    total = sum(counts)
    ends = list(accumulate(counts))
    return tuple(
        _stage(stage, worker, (end - count, end, total), 1 / speeds[worker], (ms, longest))
        for stage, (worker, end, count, ms) in enumerate(
            zip(workers, ends, counts, times_ms, strict=True)
        )
    )


def _stage(
    number: int,
    worker: int,
    layers: tuple[int, int, int],
    slowdown: float,
    time_ms: tuple[float, float],
) -> PlacedStage:
    first, end, total = layers
    left, right = 100 * first / total, 100 * end / total
    # Labels stand on pale blocks, and next to dark ones.
    inside = slowdown < _DARK
    late = (left if inside else right) > _LATE
    slow = f"{times(slowdown)} slower" if slowdown >= _SLOW else ""
    return PlacedStage(
        number=number,
        workers=", ".join(
            part for part in ("" if worker == number else f"stage {worker}’s", slow) if part
        ),
        left=round(left, 3),
        width=round(right - left, 3),
        color=heat_color(slowdown),
        label=str(end - first),
        label_at=round(left if inside or late else right, 3),
        anchor="end" if late else "start",
        share=100 * time_ms[0] / time_ms[1],
        text=f"{milliseconds(time_ms[0])} ms",
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
