"""Metadata of a session whose parts each say something about it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.analysis.trace.metadata import metadata_document, parse_metadata
from app.analysis.trace.model import SessionMeta
from app.analysis.trace.unmapped import said, saying
from app.errors import Fault, InvalidMetadataError


def join_metadata(known: SessionMeta, added: SessionMeta) -> SessionMeta:
    """Return what both say; a host or a table that only one of them has is kept.

    What was left out of their recordings adds up.

    Raises
    ------
    InvalidMetadataError
        `metadata.conflict`, with the first key about which they disagree.
    """
    left_out = (*said(known.extra), *said(added.extra))
    first, second = saying(known, ()), saying(added, ())
    both = first
    if first != second:
        both = parse_metadata(_joined(metadata_document(first), metadata_document(second), ""))
    return saying(both, left_out)


def _joined(known: Mapping[str, Any], added: Mapping[str, Any], inside: str) -> dict[str, Any]:
    both = dict(known)
    for key, value in added.items():
        path = f"{inside}{key}"
        if key not in both:
            both[key] = value
        elif isinstance(both[key], Mapping) and isinstance(value, Mapping):
            both[key] = _joined(both[key], value, f"{path}.")
        elif both[key] != value:
            message = f"{path} contradicts what was sent before for this session"
            raise InvalidMetadataError(
                message,
                code="metadata.conflict",
                faults=(Fault("conflict", message, column=path),),
            )
    return both
