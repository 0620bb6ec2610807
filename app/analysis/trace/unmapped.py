"""What a recording holds that is no operation of ours."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from app.analysis.trace.model import SessionMeta

# In the metadata of a session, among those that say nothing where they are not as here.
_KEY: Final = "unmapped"
# Kinds that are kept; the rest is counted together.
MAX_KINDS: Final = 32
_MAX_TEXT: Final = 400
# Far from what JSON's integers hold, however many bodies say it.
_MOST: Final = 10**12


@dataclass(frozen=True, slots=True)
class Unmapped:
    """Things of one kind that a decoder could make nothing of."""

    what: str
    """Their kind, in the plural, for a person."""
    count: int
    """How many."""
    remedy: str | None = None
    """The setting of the recorder that would record what is missing; None where nothing is missing.
    """


def total(found: Iterable[Unmapped]) -> tuple[Unmapped, ...]:
    """Return the sums over several bodies, the most frequent kind first."""
    counts: dict[tuple[str, str | None], int] = {}
    for one in found:
        key = (one.what, one.remedy)
        counts[key] = counts.get(key, 0) + one.count
    sums = (
        Unmapped(what, min(count, _MOST), remedy)
        for (what, remedy), count in counts.items()
        if count
    )
    return tuple(sorted(sums, key=lambda one: (-one.count, one.what)))


def saying(meta: SessionMeta, unmapped: Iterable[Unmapped]) -> SessionMeta:
    """Return metadata that say what was left out of their recording, and nothing before it."""
    return replace(meta, extra=with_unmapped(meta.extra, unmapped))


def with_unmapped(document: Mapping[str, Any], unmapped: Iterable[Unmapped]) -> dict[str, Any]:
    """Return a document of metadata that says what was left out, and nothing before it."""
    document = {key: value for key, value in document.items() if key != _KEY}
    found = total(unmapped)
    if len(found) > MAX_KINDS:
        rest = sum(one.count for one in found[MAX_KINDS - 1 :])
        found = (*found[: MAX_KINDS - 1], Unmapped("things of other kinds", rest))
    if found:
        document[_KEY] = [asdict(one) for one in found]
    return document


def said(extra: Mapping[str, Any]) -> tuple[Unmapped, ...]:
    """Return what a session's metadata say was left out of its recording."""
    given = extra.get(_KEY)
    if not isinstance(given, list):
        return ()
    return total(one for one in map(_read, given[:MAX_KINDS]) if one is not None)


def _read(given: object) -> Unmapped | None:
    if not isinstance(given, Mapping):
        return None
    what, count = _text(given.get("what")), given.get("count")
    if what is None or isinstance(count, bool) or not isinstance(count, int) or count < 1:
        return None
    return Unmapped(what, count, _text(given.get("remedy")))


def _text(value: object) -> str | None:
    fits = isinstance(value, str) and 0 < len(value) <= _MAX_TEXT and value.isprintable()
    return str(value) if fits else None
