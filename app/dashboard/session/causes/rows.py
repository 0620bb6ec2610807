"""The table of causes: what each one costs, with the evidence and where that is to be seen."""

from __future__ import annotations

from dataclasses import dataclass

from app.analysis.diagnosis.causes.registry import title_of
from app.analysis.diagnosis.places import (
    FigureView,
    LinkView,
    RegionView,
    StageView,
    StepView,
    View,
    WorkerView,
)
from app.analysis.report.document import Report
from app.analysis.report.findings import NamedCause
from app.analysis.wording import sure
from app.dashboard.session.causes.pictures import Picture, cause_pictures, picture_id
from app.dashboard.ui.format import listing, rough_percent


@dataclass(frozen=True, slots=True)
class EvidenceLine:
    """A reason in words, and where on the page it is to be seen (empty: nowhere)."""

    text: str
    url: str


@dataclass(frozen=True, slots=True)
class CauseRow:
    """A cause that was considered."""

    name: str
    share: str
    confidence: str
    evidence: tuple[EvidenceLine, ...]
    strong: bool = False
    muted: bool = False
    pictures: tuple[Picture, ...] = ()


def _share(contribution: float | None) -> str:
    # Of two causes that may be each other the first has the share.
    return "the same" if contribution is None else rough_percent(contribution)


def causes_table(report: Report) -> tuple[CauseRow, ...]:
    """Return the causes, and what was ruled out or cannot be judged."""
    rows = [
        CauseRow(
            name=title_of(cause.cause),
            share=_share(cause.contribution),
            confidence="" if cause.confidence is None else sure(cause.confidence),
            evidence=_evidence(report, cause),
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


def _evidence(report: Report, cause: NamedCause) -> tuple[EvidenceLine, ...]:
    return tuple(
        EvidenceLine(text, _view_url(report, cause, view) if view else "")
        for text, view in zip(cause.evidence, cause.views, strict=True)
    )


def _view_url(report: Report, cause: NamedCause, view: View) -> str:
    """Return where on this page a piece of evidence is to be seen; empty where nowhere."""
    if isinstance(view, FigureView | LinkView):
        part = view.part if isinstance(view, FigureView) else ""
        target = picture_id(cause.cause, part)
        return f"#{target}" if any(p.id == target for p in cause_pictures(cause)) else ""
    if not report.fidelity.verdict:
        # The page has no map and no timeline then, but how late launches are in each step.
        return "#launches" if isinstance(view, StepView) else ""
    return _place_url(report, view)


def _place_url(report: Report, view: WorkerView | StageView | StepView | RegionView) -> str:
    """Return where on a page with a verdict a view is.

    A stage is a line of the map: its slowest worker is chosen there.
    """
    match view:
        case StageView(pp=stage):
            return _slowest_url(report, stage)
        case WorkerView(dp=dp, pp=pp):
            return f"?dp={dp}&pp={pp}"
        case StepView(step=step):
            return f"?step={step}"
        case RegionView(view="scatter"):
            return "#scatter"
    return "#heatmap"


def _slowest_url(report: Report, stage: int) -> str:
    dp, pp = next((dp, pp) for _, dp, pp in report.ranked_workers() if pp == stage)
    return f"?dp={dp}&pp={pp}"
