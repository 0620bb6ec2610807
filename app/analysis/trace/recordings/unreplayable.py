"""What a decoder says of a recording whose steps cannot be replayed.

A profile without labels whose sends and receives fit no schedule, or a device trace that does not
tell a forward from a backward, still tells who comes last at collectives and what steps pass with.
Its decoder gives such metadata the reason, and the report does without a slowdown; see
`app.analysis.report.unreplayed.prepare`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from app.analysis.trace.model import SessionMeta

# In the metadata of a session, among those that say nothing where they are not as here.
_KEY: Final = "not_replayed"
_MAX_TEXT: Final = 400


def not_replayed(meta: SessionMeta, reason: str) -> SessionMeta:
    """Return metadata that say why steps cannot be replayed.

    Parameters
    ----------
    reason : str
        The rest of a sentence, ``its sends and receives fit no pipeline schedule``; at most 400
        printable characters.

    Examples
    --------
    >>> from app.analysis.trace.model import Sizes
    >>> reason_of(not_replayed(SessionMeta(Sizes(dp=2, pp=1)), "no computation has a name"))
    'no computation has a name'
    """
    return replace(meta, extra={**meta.extra, _KEY: reason})


def reason_of(meta: SessionMeta) -> str | None:
    """Return why the steps of a session cannot be replayed; None where nothing says so."""
    return _text(meta.extra)


def _text(extra: Mapping[str, Any]) -> str | None:
    value = extra.get(_KEY)
    fits = isinstance(value, str) and 0 < len(value) <= _MAX_TEXT and value.isprintable()
    return str(value) if fits else None
