"""Context-parallel ranks that keep their group waiting: no trace has their collectives."""

from __future__ import annotations

from typing import Final

from app.analysis.diagnosis.causes.kind import Kind
from app.analysis.diagnosis.signs import Signs


def _cannot_judge(signs: Signs) -> str | None:
    several = signs.observation.trace.meta.sizes.cp > 1
    return "no context-parallel operations recorded" if several else None


CONTEXT_PARALLEL: Final = Kind(
    name="context_parallel_straggler",
    title="Context-parallel straggler",
    cannot_judge=_cannot_judge,
)
