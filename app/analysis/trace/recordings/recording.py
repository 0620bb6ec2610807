"""What a decoder of a foreign recording returns."""

from __future__ import annotations

from dataclasses import dataclass

from app.analysis.trace.model import Trace
from app.analysis.trace.unmapped import Unmapped


@dataclass(frozen=True, slots=True)
class Recording:
    """A trace, and what of the recording is not in it."""

    trace: Trace
    unmapped: tuple[Unmapped, ...]
