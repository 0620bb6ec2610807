"""The table of causes: what each one costs, with the evidence and where that is to be seen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from app.analysis.diagnosis.causes.registry import title_of
from app.analysis.wording import sure
from app.dashboard.look.format import listing, rough_percent
from app.dashboard.session import findings
from app.dashboard.session.cause_pictures import Picture, cause_pictures, picture_id

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Evidence:
    """A reason in words, and where on the page it is to be seen (empty: nowhere)."""

    text: str
    url: str


@dataclass(frozen=True, slots=True)
class CauseRow:
    """A cause that was considered."""

    name: str
    share: str
    confidence: str
    evidence: tuple[Evidence, ...]
    strong: bool = False
    muted: bool = False
    pictures: tuple[Picture, ...] = ()


def causes_table(document: Document) -> tuple[CauseRow, ...]:
    """Return the causes, and what was ruled out or cannot be judged."""
    rows = [
        CauseRow(
            name=title_of(cause["cause"]),
            share="" if cause["contribution"] is None else rough_percent(cause["contribution"]),
            confidence="" if cause["confidence"] is None else sure(cause["confidence"]),
            evidence=_evidence(document, cause),
            strong=index == 0,
            pictures=cause_pictures(cause),
        )
        for index, cause in enumerate(document["causes"])
    ]
    # Reports from before causes were ruled out do not say so.
    diagnosis = document.get("diagnosis") or {}
    ruled_out = diagnosis.get("ruled_out", ())
    cheap = [c for c in ruled_out if any(c == x.get("runner_up") for x in document["causes"])]
    rows += [_note(title_of(c), "its sign is there, but costs too little") for c in cheap]
    ruled_out = [title_of(c).lower() for c in ruled_out if c not in cheap]
    if ruled_out:
        rows.append(_note("Not found", listing(ruled_out)))
    reasons: dict[str, list[str]] = {}
    for item in diagnosis.get("cannot_judge", ()):
        reasons.setdefault(item["reason"], []).append(title_of(item["cause"]))
    rows += [
        _note(listing([names[0], *(name.lower() for name in names[1:])]), f"cannot say: {reason}")
        for reason, names in reasons.items()
    ]
    return tuple(rows)


def _note(name: str, text: str) -> CauseRow:
    return CauseRow(name, "", "", (Evidence(text, ""),), muted=True)


def _evidence(document: Document, cause: Mapping[str, Any]) -> tuple[Evidence, ...]:
    views = cause.get("views") or [None] * len(cause["evidence"])
    return tuple(
        Evidence(text, _view_url(document, cause, view) if view else "")
        for text, view in zip(cause["evidence"], views, strict=True)
    )


def _view_url(document: Document, cause: Document, view: Mapping[str, Any]) -> str:
    """Return where on this page a piece of evidence is to be seen; empty where nowhere."""
    if view["view"] in {"figure", "link"}:
        target = picture_id(cause["cause"], view.get("part", ""))
        return f"#{target}" if any(p.id == target for p in cause_pictures(cause)) else ""
    if not document["fidelity"]["verdict"]:
        # The page has no map and no timeline then, but how late launches are in each step.
        return "#launches" if view["view"] == "step" else ""
    return _place_url(document, view)


def _place_url(document: Document, view: Mapping[str, Any]) -> str:
    """Return where on a page with a verdict a view is.

    A stage or a DP rank is a line of the map: its slowest worker is chosen there.
    """
    match view:
        case {"view": "stage", "pp": stage}:
            return _slowest_url(document, lambda _, pp: pp == stage)
        case {"view": "dp", "dp": rank}:
            return _slowest_url(document, lambda dp, _: dp == rank)
        case {"view": "worker", "dp": dp, "pp": pp}:
            return f"?dp={dp}&pp={pp}"
        case {"view": "step", "step": step}:
            return f"?step={step}"
    return {"scatter": "#scatter", "map": "#heatmap"}.get(view["view"], "")


def _slowest_url(document: Document, among: Callable[[int, int], bool]) -> str:
    for _, dp, pp in findings.ranked_workers(document):
        if among(dp, pp):
            return f"?dp={dp}&pp={pp}"
    return "#heatmap"
