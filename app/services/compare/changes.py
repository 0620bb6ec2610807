"""What changed between two sessions: causes that went and came, and metadata."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from app.analysis.trace.ranks.whereabouts import KEYS

if TYPE_CHECKING:
    from app.analysis.report.document import Report

# Less of a step is not worth calling gone or come.
NEGLIGIBLE: Final = 0.01
# Maps of every rank: what changed of them is said by host.
_BY_RANK: Final = frozenset({"hosts", "gpus", "producers", *KEYS}) - {"launcher"}


class Change(StrEnum):
    """The change of a cause."""

    GONE = "gone"
    CAME = "came"
    LESS = "less"
    MORE = "more"
    SAME = "same"


@dataclass(frozen=True, slots=True)
class CauseChange:
    """A cause in two sessions."""

    cause: str
    before: float | None
    """The share of the mean step that it costs; None where it was not named."""
    after: float | None
    """The share of the mean step that it costs; None where it was not named."""
    change: Change


@dataclass(frozen=True, slots=True)
class FieldChange:
    """A field of the metadata that differs; None where a session does not have it."""

    field: str
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True)
class MetadataChanges:
    """What differs in the metadata, and how many fields do not."""

    changed: tuple[FieldChange, ...]
    equal: int


def cause_changes(before: Report, after: Report) -> tuple[CauseChange, ...]:
    """Return every cause that one of two sessions names, the largest change first."""
    shares = [_shares(report) for report in (before, after)]
    names = dict.fromkeys((*shares[0], *shares[1]))
    found = [_change(name, shares[0].get(name), shares[1].get(name)) for name in names]
    return tuple(sorted(found, key=lambda one: -abs((one.after or 0.0) - (one.before or 0.0))))


def _shares(report: Report) -> dict[str, float]:
    """Return the share of a mean step that each cause costs."""
    steps = report.step_times.simulated
    mean_s = sum(steps) / len(steps)
    found: dict[str, float] = {}
    for cause in report.causes:
        cost = (cause.cost_s or 0.0) / mean_s
        found[cause.cause] = found.get(cause.cause, 0.0) + cost
    return found


def _change(name: str, before: float | None, after: float | None) -> CauseChange:
    was, is_ = before or 0.0, after or 0.0
    if abs(is_ - was) < NEGLIGIBLE:
        change = Change.SAME
    elif is_ < NEGLIGIBLE:
        change = Change.GONE
    elif was < NEGLIGIBLE:
        change = Change.CAME
    else:
        change = Change.LESS if is_ < was else Change.MORE
    return CauseChange(name, before, after, change)


def metadata_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> MetadataChanges:
    """Return what differs in the metadata of two sessions, field by field.

    Examples
    --------
    >>> a = {"dp": 2, "hosts": {"0": "node-1"}, "labels": {"team": "x"}}
    >>> b = {"dp": 2, "hosts": {"0": "node-9"}, "labels": {"team": "y"}}
    >>> for one in metadata_changes(a, b).changed:
    ...     print(one.field, one.before, one.after)
    hosts node-1 node-9
    labels.team x y
    """
    sides = [dict(_flat(_without(side))) for side in (before, after)]
    names = sorted({*sides[0], *sides[1]})
    changed = [
        FieldChange(name, sides[0].get(name), sides[1].get(name))
        for name in names
        if sides[0].get(name) != sides[1].get(name)
    ]
    return MetadataChanges((*_places(before, after), *changed), len(names) - len(changed))


def _without(meta: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in meta.items() if name not in _BY_RANK}


def _places(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[FieldChange]:
    """Yield which hosts went and came, and that ranks changed places where only they did."""
    sides = [side.get("hosts") or {} for side in (before, after)]
    if sides[0] == sides[1]:
        return
    gone, came = (
        sorted(set(own.values()) - set(other.values())) for own, other in (sides, reversed(sides))
    )
    if gone or came:
        yield FieldChange("hosts", ", ".join(gone) or None, ", ".join(came) or None)
        return
    moved = sum(sides[0].get(rank) != sides[1].get(rank) for rank in {*sides[0], *sides[1]})
    yield FieldChange("hosts", "the same", f"the same, {moved} ranks in other places")


def _flat(value: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    for name, inner in value.items():
        here = f"{path}.{name}" if path else str(name)
        if isinstance(inner, Mapping):
            yield from _flat(inner, here)
        elif inner is not None:
            yield here, _said(inner)


def _said(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value)
