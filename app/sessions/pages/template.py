"""The recommended pipeline template on the page of a session."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from app.analysis.mitigation.fixes import PlannedTemplate, WithheldTemplate
from app.analysis.report.document import Report
from app.plans.pages.parts import layer_ticks, milliseconds
from app.web.format import heat_color, listing, percent, rough_percent, seconds, times

# Smallest predicted gain for which a template is recommended: a smaller gain is not worth a
# restart.
MIN_GAIN: Final = 0.02
# A worker of at least this slowdown is called slow.
_SLOW: Final = 1.05
# Position on the axis, in per cent, from which a label has no room to the right of its block.
_LATE: Final = 84.0
# A template with a smaller gap to the optimum is shown as proven optimal.
_EXACT: Final = 0.0005
# A block of at least this slowdown is too dark for a label inside it.
_DARK: Final = 1.15


@dataclass(frozen=True, slots=True)
class PlacedStage:
    """A stage on the axis of layers, in per cent; its slowest worker determines its color."""

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
    """The current or the recommended division of the layers into stages."""

    word: str
    note: str
    stages: tuple[PlacedStage, ...]


@dataclass(frozen=True, slots=True)
class SessionTemplate:
    """The current and the recommended division; a withheld template has only its reason, `note`."""

    title: str
    note: str
    ticks: tuple[tuple[float, str], ...] = ()
    sides: tuple[Side, ...] = ()
    remarks: str = ""


def _proof(template: PlannedTemplate) -> str:
    if template.proven or (template.gap is not None and template.gap < _EXACT):
        return ", proven optimal for the measured times"
    if template.gap is None:
        return ""
    return (
        f", at most {rough_percent(template.gap)} above the fastest possible for the measured times"
    )


def session_template(report: Report) -> SessionTemplate | None:
    """Return the recommended template; None if there is no template or its gain is too small."""
    template = report.template
    if template is None:
        return None
    if isinstance(template, WithheldTemplate):
        return SessionTemplate("No template can be recommended", template.reason)
    gain = template.predicted_gain
    if gain < MIN_GAIN:
        return None
    simulated = report.step_times.simulated
    now_s = sum(simulated) / len(simulated)
    layers = template.layers
    moves = [
        f"stage {stage} gets those of today’s stage {worker}"
        for stage, worker in enumerate(template.worker_of_stage)
        if stage != worker
    ]
    longest = max(template.stage_ms.today + template.stage_ms.template)
    today = list(range(len(layers.today)))
    proof = _proof(template)
    return SessionTemplate(
        title="Dividing the layers by what each worker can do saves "
        f"{'up to ' if template.at_most else ''}{percent(gain)} of every step",
        note="Layers of each stage now and in the recommended pipeline template, replayed on this "
        "session’s own durations; color: "
        "slowdown of the slowest worker of the stage",
        ticks=layer_ticks(sum(layers.today)),
        sides=(
            Side(
                "Now",
                f"{seconds(now_s)} a step",
                _placed(template, today, (layers.today, template.stage_ms.today), longest),
            ),
            Side(
                "Recommended",
                f"{seconds(template.predicted_step_time)} a step{proof}",
                _placed(
                    template,
                    template.worker_of_stage,
                    (layers.template, template.stage_ms.template),
                    longest,
                ),
            ),
        ),
        remarks=" ".join(
            part
            for part in (
                f"Workers move: {listing(moves)}." if moves else "",
                _UP_TO if template.at_most else "",
                _MEMORY,
            )
            if part
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


def _placed(
    template: PlannedTemplate,
    workers: Sequence[int],
    side: tuple[Sequence[int], Sequence[float]],
    longest: float,
) -> tuple[PlacedStage, ...]:
    (counts, times_ms), speeds = side, template.speed_of_worker
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
    # Labels of dark blocks are placed next to the blocks, where they are readable.
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
