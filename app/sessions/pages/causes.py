"""The table of causes on a session's page, with small pictures of their evidence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from app.analysis.diagnosis.causes.registry import title_of
from app.analysis.diagnosis.finding import (
    ComputingLevels,
    FigureData,
    HeldLaunches,
    LateLaunches,
    LateRanks,
    Lengths,
    Links,
    Rotation,
    Spread,
    Squares,
    StageLoad,
    Stalls,
    TransferLevels,
    WorkerSteps,
)
from app.analysis.diagnosis.locations import (
    FigureView,
    LinkView,
    RegionView,
    StageView,
    StepView,
    View,
    WorkerView,
)
from app.analysis.report.document import NamedCause, Report
from app.analysis.wording import sure
from app.web.format import (
    heat_color,
    listing,
    percent,
    plural,
    rough_percent,
    seconds,
    times,
    worker,
)

T = TypeVar("T")

WIDTH: Final = 240
HEIGHT: Final = 40
# Limits of the bars and rows of a picture; with more values, a bar shows the worst of several.
MOST_BARS: Final = 60
MOST_ROWS: Final = 10
# Marks at least this wide, in units of the picture, are drawn with a gap between them.
_WITH_GAP: Final = 3.0
_MARK: Final = "var(--mark)"
_DOT: Final = 2.0
_LISTED: Final = 16


@dataclass(frozen=True, slots=True)
class Mark:
    """A rectangle within a picture of `WIDTH` × `HEIGHT`."""

    x: float
    y: float
    width: float
    height: float
    color: str


@dataclass(frozen=True, slots=True)
class Picture:
    """A small chart; `label` describes it in words, `line` is the height of its reference line.

    Evidence links to it by its `id`.
    """

    caption: str
    label: str
    marks: tuple[Mark, ...]
    line: float | None = None
    id: str = ""


def cause_pictures(cause: NamedCause) -> tuple[Picture, ...]:
    """Return the pictures of a cause's figure, if it has one."""
    parts = {} if cause.figure is None else _draw(cause.figure)
    return tuple(
        replace(picture, id=picture_id(cause.cause, part)) for part, picture in parts.items()
    )


def _draw(figure: FigureData) -> dict[str, Picture]:  # noqa: C901, PLR0911 - one for each kind
    """Return the pictures of a figure, by the part of the figure."""
    match figure:
        case WorkerSteps():
            return {"": _worker_steps(figure)}
        case StageLoad():
            return {"": _stage_load(figure)}
        case Stalls():
            waits = _waits("Stalled forwards", figure.by_step_s, added=True)
            return {"": waits, "workers": _stalled_workers(figure)}
        case LateLaunches():
            waits = _waits("Wait before the first operation", figure.by_step_s)
            return {"": waits} | ({"ranks": _late_dp_ranks(figure)} if figure.by_dp_s else {})
        case HeldLaunches():
            return {"": _waits("Computations held up", figure.by_step_s, added=True)}
        case Links():
            return {"": _links(figure)}
        case TransferLevels():
            than = "what they take in quiet steps"
            return {
                "": _ratios(
                    figure.by_step,
                    "All transfers ÷ those of quiet steps in each step",
                    lambda high: f"transfers take up to {high} {than}",
                    color=lambda _: _MARK,
                )
            }
        case ComputingLevels():
            than = "as long as in its best steps"
            return {
                "": _ratios(
                    figure.by_step,
                    "Computing of all workers ÷ that of their best steps",
                    lambda high: f"the median worker computes up to {high} {than}",
                )
            }
        case Rotation():
            ratios = _ratios(
                figure.by_step,
                "The slowest worker of each step ÷ its median step",
                lambda high: f"the slowest worker takes up to {high} its median step",
            )
            return {"": ratios, "workers": _turns(figure)}
        case LateRanks():
            return {"": _late_ranks(figure)}
        case Lengths():
            spread = {"spread": _spread(figure.spread)}
            return spread | ({"squares": _squares(figure.squares)} if figure.squares else {})


def picture_id(cause: str, part: str) -> str:
    """Return the id of a part of a cause's picture on its page."""
    return "-".join(word for word in ("picture", *cause.split("_"), part) if word)


def _worker_steps(figure: WorkerSteps) -> Picture:
    name, ratio = worker(*figure.worker), figure.ratio
    low, high = times(min(ratio)), times(max(ratio))
    bars, of = _worst(ratio, MOST_BARS)
    return Picture(
        caption=f"Worker {name} ÷ its peers in each step, from 1.0: {low} to {high}{of}",
        label=f"Bars of {plural(len(ratio), 'step')}: worker {name} takes {low} to {high} "
        "the time of its stage's peers",
        marks=_bars(bars, base=1.0, color=heat_color),
    )


def _stage_load(figure: StageLoad) -> Picture:
    relative = figure.relative
    bars, of = _worst(relative, MOST_BARS)
    listed = ", ".join(times(value) for value in relative[:_LISTED])
    rest = len(relative) - _LISTED
    return Picture(
        caption=f"Computation of stages 0 to {len(relative) - 1}, from 0; line: their mean{of}",
        label=f"Bars of {plural(len(relative), 'stage')} against their mean: {listed}"
        + (f" and {rest} more" if rest > 0 else ""),
        marks=_bars(bars, base=0.0, color=heat_color),
        line=round(HEIGHT * (1 - 1 / max(bars)), 1),
    )


def _waits(what: str, by_step_s: Sequence[float], *, added: bool = False) -> Picture:
    """Draw the wait in each step; `added`: the sum over all workers, which may exceed a step."""
    bars, of = _worst(by_step_s, MOST_BARS)
    within = "each step, all workers added" if added else "each step"
    high = seconds(max(by_step_s))
    mean = seconds(sum(by_step_s) / len(by_step_s))
    return Picture(
        caption=f"{what} in {within}, from 0: up to {high}{of}",
        label=f"Bars of {plural(len(by_step_s), 'step')}: {what.lower()} in {within}, "
        f"{mean} on average, {high} at most",
        marks=_bars(bars, base=0.0, color=lambda _: _MARK),
    )


def _stalled_workers(figure: Stalls) -> Picture:
    by_stage = list(zip(*figure.by_worker, strict=True))
    counts = [number for row in by_stage for number in row]
    most, stalled = max(counts), sum(number > 0 for number in counts)
    return Picture(
        caption="Stalls by worker, stages (rows) of DP ranks (columns): gray none, the map's "
        f"strongest color {most}",
        label=f"Matrix of {plural(len(counts), 'worker')}: forwards stall on {stalled} of them, "
        f"at most {most} on one",
        marks=_matrix(by_stage, lambda number: heat_color(1 + number / (2 * most))),
    )


def _late_dp_ranks(figure: LateLaunches) -> Picture:
    by_dp_s = figure.by_dp_s
    bars, of = _worst(by_dp_s, MOST_BARS)
    slowest = max(range(len(by_dp_s)), key=by_dp_s.__getitem__)
    return Picture(
        caption=f"The same by DP rank, mean of the steps, from 0: rank {slowest} up to "
        f"{seconds(by_dp_s[slowest])}{of}",
        label=f"Bars of {plural(len(by_dp_s), 'DP rank')}: rank {slowest} waits longest, "
        f"{seconds(by_dp_s[slowest])}",
        marks=_bars(bars, base=0.0, color=lambda _: _MARK),
    )


def _links(figure: Links) -> Picture:
    ends, ratio = figure.ends, figure.ratio
    worst = max((value, row, dp) for row, line in enumerate(ratio) for dp, value in enumerate(line))
    slowest = f"between stages {ends[worst[1]][0]} and {ends[worst[1]][1]} of DP rank {worst[2]}"
    return Picture(
        caption="Links between stages (rows) of DP ranks (columns): transfers ÷ median, colors as "
        f"in the map; the slowest, {slowest}: {times(worst[0])}",
        label=f"Matrix of {plural(len(ends), 'link')} of {plural(len(ratio[0]), 'DP rank')}: the "
        f"slowest, {slowest}, takes {times(worst[0])} the median",
        marks=_matrix(ratio, heat_color),
    )


def _ratios(
    by_step: Sequence[float],
    caption: str,
    label: Callable[[str], str],
    *,
    color: Callable[[float], str] = heat_color,
) -> Picture:
    """Draw each step's ratio as a bar from 1.0; `label` describes the highest ratio."""
    high = times(max(by_step))
    bars, of = _worst(by_step, MOST_BARS)
    return Picture(
        caption=f"{caption}, from 1.0: up to {high}{of}",
        label=f"Bars of {plural(len(by_step), 'step')}: {label(high)}",
        marks=_bars(bars, base=1.0, color=color),
    )


def _turns(figure: Rotation) -> Picture:
    by_stage = list(zip(*figure.slowest, strict=True))
    counts = [number for row in by_stage for number in row]
    most = max(counts)
    return Picture(
        caption="Steps in which each worker is the slowest, stages (rows) of DP ranks (columns): "
        f"gray none, the map's strongest color {most}",
        label=f"Matrix of {plural(len(counts), 'worker')}: {sum(n > 0 for n in counts)} of them "
        f"are the slowest of some step, none of more than {most}",
        marks=_matrix(by_stage, lambda number: heat_color(1 + number / (2 * most))),
    )


def _late_ranks(figure: LateRanks) -> Picture:
    name, ranks, share = worker(*figure.worker), figure.ranks, figure.share
    bars, of = _worst(share, MOST_BARS)
    worst = max(range(len(share)), key=share.__getitem__)
    shares = ", ".join(
        f"{rank} {percent(part, 0)}"
        for rank, part in zip(ranks[:_LISTED], share[:_LISTED], strict=True)
    )
    return Picture(
        caption=f"For which rank of worker {name} its group waits; rank {ranks[worst]}: "
        f"{rough_percent(share[worst])}{of}",
        label=f"Bars of the ranks of worker {name}, share of the waiting: {shares}",
        marks=_bars(bars, base=0.0, color=lambda _: _MARK),
    )


def _spread(spread: Spread) -> Picture:
    counts, low, high = spread.counts, times(spread.from_), times(spread.to)
    return Picture(
        caption=f"How many microbatches take how much of the mean time, from {low} to {high}",
        label=f"Bars of {plural(len(counts), 'class', 'classes')} of microbatches by time ÷ mean, "
        f"from {low} to {high}",
        marks=_bars(counts, base=0.0, color=lambda _: _MARK),
    )


def _squares(points: Squares) -> Picture:
    across, up = points.sum_of_squares, points.relative
    return Picture(
        caption="Σs² of the recorded sequence lengths (across) against time ÷ mean (up)",
        label=f"Points of {plural(len(across), 'microbatch', 'microbatches')}: Σs² is "
        f"{min(across):.2g} to {max(across):.2g}, their time {times(min(up))} to "
        f"{times(max(up))} the mean",
        marks=tuple(
            Mark(
                x=round(x * (WIDTH - _DOT), 1),
                y=round((1 - y) * (HEIGHT - _DOT), 1),
                width=_DOT,
                height=_DOT,
                color=_MARK,
            )
            for x, y in zip(_unit(across), _unit(up), strict=True)
        ),
    )


def _unit(values: Sequence[float]) -> list[float]:
    """Return the values scaled linearly: the smallest to 0, the largest to 1."""
    low, high = min(values), max(values)
    return [(value - low) / ((high - low) or 1.0) for value in values]


def _grouped(values: Sequence[T], most: int) -> list[Sequence[T]]:
    """Return the values in at most `most` groups of neighbors."""
    size = -(-len(values) // most)
    return [values[i : i + size] for i in range(0, len(values), size)]


def _worst(values: Sequence[float], most: int) -> tuple[list[float], str]:
    """Return the largest value of each group of neighbors, and a note on the group size."""
    groups = _grouped(values, most)
    size = len(groups[0])
    return [max(group) for group in groups], f"; a bar is the worst of {size}" if size > 1 else ""


def _bars(
    values: Sequence[float], *, base: float, color: Callable[[float], str]
) -> tuple[Mark, ...]:
    """Return bars that start at `base`; the longest bar is as high as the picture."""
    width = WIDTH / len(values)
    span = max(max(values) - base, 1e-9)
    marks = []
    for index, value in enumerate(values):
        height = HEIGHT * max(0.0, value - base) / span
        if height:
            marks.append(_mark(index * width, HEIGHT - height, width, height, color(value)))
    return tuple(marks)


def _matrix(values: Sequence[Sequence[float]], color: Callable[[float], str]) -> tuple[Mark, ...]:
    """Return a matrix as marks; with too many values, a mark shows the worst of neighbors."""
    rows = [[max(column) for column in zip(*group, strict=True)]
            for group in _grouped(values, MOST_ROWS)]  # fmt: skip
    matrix = [_worst(row, MOST_BARS)[0] for row in rows]
    width, height = WIDTH / len(matrix[0]), HEIGHT / len(matrix)
    return tuple(
        _mark(column * width, row * height, width, height - 1, color(value))
        for row, line in enumerate(matrix)
        for column, value in enumerate(line)
    )


def _mark(x: float, y: float, width: float, height: float, color: str) -> Mark:
    gap = 1.0 if width >= _WITH_GAP else 0.0
    return Mark(round(x, 2), round(y, 2), round(width - gap, 2), round(height, 2), color)


@dataclass(frozen=True, slots=True)
class EvidenceLine:
    """A piece of evidence in words, with a link to its place on the page, if any."""

    text: str
    url: str


@dataclass(frozen=True, slots=True)
class CauseRow:
    """A row of the table: a cause that was found, ruled out, or could not be judged."""

    name: str
    share: str
    confidence: str
    evidence: tuple[EvidenceLine, ...]
    strong: bool = False
    muted: bool = False
    pictures: tuple[Picture, ...] = ()


def causes_table(report: Report) -> tuple[CauseRow, ...]:
    """Return the causes found, then those ruled out, then those that cannot be judged."""
    rows = [
        CauseRow(
            name=title_of(cause.cause),
            # If two causes cannot be distinguished, only the first of them has a share.
            share="the same" if cause.contribution is None else rough_percent(cause.contribution),
            confidence="" if cause.confidence is None else sure(cause.confidence),
            evidence=tuple(
                EvidenceLine(text, _view_url(report, cause, view) if view else "")
                for text, view in zip(cause.evidence, cause.views, strict=True)
            ),
            strong=index == 0,
            pictures=cause_pictures(cause),
        )
        for index, cause in enumerate(report.causes)
    ]
    diagnosis = report.diagnosis
    cheap = [c for c in diagnosis.ruled_out if any(c == x.runner_up for x in report.causes)]
    rows += [_note(title_of(c), "present, but costs too little") for c in cheap]
    ruled_out = [title_of(c).lower() for c in diagnosis.ruled_out if c not in cheap]
    if ruled_out:
        rows.append(_note("Not found", listing(ruled_out)))
    reasons: dict[str, list[str]] = {}
    for item in diagnosis.cannot_judge:
        reasons.setdefault(item.reason, []).append(title_of(item.cause))
    rows += [
        _note(listing([names[0], *(name.lower() for name in names[1:])]), f"unknown: {reason}")
        for reason, names in reasons.items()
    ]
    return tuple(rows)


def _note(name: str, text: str) -> CauseRow:
    return CauseRow(name, "", "", (EvidenceLine(text, ""),), muted=True)


def _view_url(report: Report, cause: NamedCause, view: View) -> str:
    """Return the link to the figure that shows a piece of evidence; empty if there is none."""
    if isinstance(view, FigureView | LinkView):
        part = view.part if isinstance(view, FigureView) else ""
        target = picture_id(cause.cause, part)
        return f"#{target}" if any(p.id == target for p in cause_pictures(cause)) else ""
    if not report.fidelity.verdict:
        # Without a verdict the page has no map and no timeline; it only has the launch delays of
        # each step.
        return "#launches" if isinstance(view, StepView) else ""
    return _place_url(report, view)


def _place_url(report: Report, view: WorkerView | StageView | StepView | RegionView) -> str:
    match view:
        case StageView(pp=stage):
            # A stage is a row of the map: the link selects the slowest worker of the stage.
            dp, pp = next((dp, pp) for _, dp, pp in report.ranked_workers() if pp == stage)
            return f"?dp={dp}&pp={pp}"
        case WorkerView(dp=dp, pp=pp):
            return f"?dp={dp}&pp={pp}"
        case StepView(step=step):
            return f"?step={step}"
        case RegionView(view="scatter"):
            return "#scatter"
    return "#heatmap"
