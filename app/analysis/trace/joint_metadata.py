"""Metadata of a session whose parts each say something about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.analysis.trace.metadata import metadata_document, parse_metadata
from app.analysis.trace.model import SessionMeta
from app.analysis.trace.ranks.whereabouts import GPU, names_of_body
from app.analysis.trace.unmapped import said, with_unmapped
from app.errors import Fault, InvalidMetadataError


def join_metadata(known: SessionMeta, added: SessionMeta) -> SessionMeta:
    """Return what both say; a host or a table that only one of them has is kept.

    What was left out of their recordings adds up.

    Raises
    ------
    InvalidMetadataError
        `metadata.conflict`, with the first key about which they disagree.
    """
    return parse_metadata(join_documents(metadata_document(known), added))


def join_documents(known: Mapping[str, Any], added: SessionMeta) -> dict[str, Any]:
    """Return the document of what both say, as `join_metadata` does.

    Parameters
    ----------
    known : mapping
        As `metadata_document` returns it. It may be of thousands of ranks, to which each of their
        shares adds one: so it is not checked again.
    """
    more = metadata_document(added)
    left_out = (*said(known), *said(more))
    first, second = with_unmapped(known, ()), with_unmapped(more, ())
    for rank, host in added.hosts.items():
        _forget_a_guess(str(rank), host, first, second)
    return with_unmapped(_joined(first, second, ""), left_out)


def with_names(meta: SessionMeta, named: Mapping[str, str | Mapping[str, str]]) -> SessionMeta:
    """Return metadata with more of OpenTelemetry's names.

    Raises
    ------
    InvalidMetadataError
        `metadata.conflict`: the metadata name another machine for a rank.
    """
    extra = {key: value for key, value in meta.extra.items() if key not in named}
    return parse_metadata({**metadata_document(replace(meta, extra=extra)), **named})


def with_names_of_body(meta: SessionMeta, rank: NDArray[np.int32]) -> SessionMeta:
    """Return the metadata of a body, with what they say once for all its ranks said of each.

    A GPU is that of one rank: for several its name says nothing.

    Raises
    ------
    InvalidMetadataError
        See `with_names`.
    """
    said = names_of_body(meta.extra)
    if not said:
        return meta
    ranks = np.unique(rank).tolist()
    if len(ranks) > 1:
        said.pop(GPU, None)
    named = {key: dict.fromkeys(map(str, ranks), name) for key, name in said.items()}
    return with_names(meta, named) if named else meta


def _forget_a_guess(rank: str, host: str, known: dict[str, Any], added: dict[str, Any]) -> None:
    """Drop the one of two hosts of a rank that is a guess, where the other is none."""
    before = known.get("hosts", {}).get(rank, host)
    was_guessed, is_guessed = (
        name in document.get("guessed_hosts", {})
        for name, document in ((before, known), (host, added))
    )
    if before == host or was_guessed == is_guessed:
        return
    document = known if was_guessed else added
    document["hosts"] = {key: name for key, name in document["hosts"].items() if key != rank}


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
