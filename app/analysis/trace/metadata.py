"""Metadata of a session: parsing, checks, union of parts, and decoders' notes on the recording.

Accepted keys are ours (``dp pp tp cp vpp world``) and the keys of the published ``meta-*.yaml``
(``dp_size dsp_size pp_size tp_size vpp_size world_size``, where dsp is the context-parallel size).
A document may give a size under both keys if the values agree. Decoders note the recorded items
that they could not map (`Unmapped`), and the reason why steps cannot be replayed (`not_replayed`).

Codes of `InvalidMetadataError`
-------------------------------
=============================  ====================================================================
``metadata.missing``           there is no metadata at all
``metadata.malformed``         not YAML or JSON, or not a mapping
``metadata.too_large``         the document is longer than the limit
``metadata.missing_size``      ``dp`` or ``pp`` is absent
``metadata.bad_size``          a size is not a whole number, below 1, or absurd
``metadata.conflict``          two keys for one size or one rank, or two documents, disagree
``metadata.world_mismatch``    ``dp * pp * tp * cp`` is not ``world``
``metadata.bad_value``         another key has a value of the wrong type
``metadata.rank_out_of_range`` a host, GPU or pod of a rank that the sizes do not have
=============================  ====================================================================
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.documents import UnreadableDocumentError, load_document
from app.analysis.trace.limits import MAX_MODEL_CHUNKS, MAX_STEP, MAX_WORLD
from app.analysis.trace.model import SessionMeta, Sizes
from app.analysis.trace.rank_metadata import (
    GPU,
    KEYS,
    OTEL_KEYS,
    SLURM_JOB,
    mapping_of,
    names_by_rank,
    names_of_body,
    parse_links,
    parse_whereabouts,
    refuse,
    refuse_all,
    shown,
    text_of,
)
from app.errors import Fault, InvalidMetadataError

SIZE_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "dp": ("dp", "dp_size"),
    "pp": ("pp", "pp_size"),
    "tp": ("tp", "tp_size"),
    "cp": ("cp", "cp_size", "dsp_size"),
    "vpp": ("vpp", "vpp_size"),
    "world": ("world", "world_size"),
}
REQUIRED_SIZES: Final = ("dp", "pp")
# Maximum number of steps with a reason for exclusion; a session has only dozens of steps.
MAX_ODD_STEPS: Final = 1000
# Deepest nesting of `SessionMeta.extra`; per-microbatch tables need four levels.
MAX_DEPTH: Final = 16

_KNOWN_KEYS: Final = frozenset(
    {key for keys in SIZE_KEYS.values() for key in keys}
    | {"trial_name", "run_id", "hosts", "gpus", "labels", "links", "odd_steps"}
    | KEYS
)


def load_metadata(text: str) -> SessionMeta:
    """Return the session metadata in a YAML or JSON text.

    Raises
    ------
    InvalidMetadataError
        With the line of the fault where the text is not well-formed.
    """
    try:
        document = load_document(text)
    except UnreadableDocumentError as error:
        raise unreadable_metadata(error) from error
    if document is None:
        refuse("the metadata is empty", "missing")
    if not isinstance(document, Mapping):
        refuse("metadata must be a mapping of keys to values", "malformed")
    return parse_metadata(document)


def unreadable_metadata(
    error: UnreadableDocumentError, name: str = "the metadata"
) -> InvalidMetadataError:
    """Return the error for metadata whose text is neither YAML nor JSON."""
    message = f"{name} is {error.message}"
    fault = Fault(error.code, message, line=error.line)
    return InvalidMetadataError(message, code=f"metadata.{error.code}", faults=(fault,))


def parse_metadata(document: Mapping[Any, Any]) -> SessionMeta:
    """Return the session metadata of a document after checking its values.

    Parameters
    ----------
    document : mapping
        As read from JSON or YAML. Keys that are not ours are kept in `SessionMeta.extra`.

    Raises
    ------
    InvalidMetadataError
        See the table of codes in this module.
    """
    sizes = _parse_sizes(document)
    hosts, whereabouts = parse_whereabouts(
        document, sizes.world, names_by_rank(document, "hosts", sizes.world)
    )
    return SessionMeta(
        sizes=sizes,
        trial_name=_optional_text(document, "trial_name"),
        run_id=_optional_text(document, "run_id"),
        hosts=hosts,
        gpus=names_by_rank(document, "gpus", sizes.world),
        whereabouts=whereabouts,
        labels={
            text_of(key, "labels"): text_of(value, "labels")
            for key, value in mapping_of(document, "labels").items()
        },
        links=parse_links(document),
        odd_steps=_parse_odd_steps(document),
        extra={
            str(key): _jsonable(value, str(key))
            for key, value in document.items()
            if key not in _KNOWN_KEYS
            # Names by rank under OpenTelemetry's keys are stored in `whereabouts`. A text for all
            # ranks of a body stays in `extra` until the body's ranks are known
            # (`with_names_of_body`).
            and not (key in OTEL_KEYS and (key == SLURM_JOB or isinstance(value, Mapping)))
        },
    )


def metadata_document(meta: SessionMeta) -> dict[str, Any]:
    """Return `meta` as a normalized JSON-serializable document, the inverse of `parse_metadata`."""
    sizes = meta.sizes
    document: dict[str, Any] = {
        "dp": sizes.dp,
        "pp": sizes.pp,
        "tp": sizes.tp,
        "cp": sizes.cp,
        "vpp": sizes.vpp,
        "world": sizes.world,
        "trial_name": meta.trial_name,
        "run_id": meta.run_id,
        "hosts": {str(rank): name for rank, name in sorted(meta.hosts.items())},
        "gpus": {str(rank): name for rank, name in sorted(meta.gpus.items())},
        "labels": dict(meta.labels),
        "links": dict(meta.links),
        "odd_steps": {str(step): reason for step, reason in sorted(meta.odd_steps.items())},
        **meta.whereabouts.document(),
    }
    given = {key: value for key, value in document.items() if value not in (None, {})}
    return {**meta.extra, **given}


def _parse_sizes(document: Mapping[Any, Any]) -> Sizes:
    parsed: dict[str, int] = {}
    faults: list[Fault] = []
    for size, keys in SIZE_KEYS.items():
        given = [key for key in keys if document.get(key) is not None]
        values = {key: document[key] for key in given}
        for key, value in values.items():
            problem = _size_problem(size, value)
            if problem:
                faults.append(Fault("bad_size", f"{key} {problem}", column=key))
        if faults or not given:
            continue
        if len(set(values.values())) > 1:
            text = " and ".join(f"{key} = {value}" for key, value in values.items())
            faults.append(Fault("conflict", f"{text} contradict each other", column=given[0]))
        parsed[size] = values[given[0]]
    if not faults:
        faults = [
            Fault("missing_size", f"the size {size} is missing", column=size)
            for size in REQUIRED_SIZES
            if size not in parsed
        ]
    if faults:
        refuse_all(faults)
    world = parsed.pop("world", None)
    sizes = Sizes(**parsed)
    if sizes.world > MAX_WORLD:
        refuse(f"dp * pp * tp * cp = {sizes.world} is over {MAX_WORLD} ranks", "bad_size")
    if world is not None and world != sizes.world:
        message = (
            f"dp * pp * tp * cp = {sizes.dp} * {sizes.pp} * {sizes.tp} * {sizes.cp} = "
            f"{sizes.world}, but world is {world}"
        )
        refuse(message, "world_mismatch", column="world")
    return sizes


def _size_problem(size: str, value: object) -> str | None:
    if isinstance(value, bool) or not isinstance(value, int):
        return f"must be a whole number, not {shown(value)}"
    if value < 1:
        return f"must be at least 1, not {shown(value)}"
    limit = MAX_MODEL_CHUNKS if size == "vpp" else MAX_WORLD
    return f"is over {limit}" if value > limit else None


def _optional_text(document: Mapping[Any, Any], key: str) -> str | None:
    value = document.get(key)
    return None if value is None else text_of(value, key)


def _parse_odd_steps(document: Mapping[Any, Any]) -> dict[int, str]:
    odd: dict[int, str] = {}
    for key, reason in mapping_of(document, "odd_steps").items():
        text = str(key)
        whole = not isinstance(key, bool) and text.isascii() and text.isdecimal()
        # The length is checked first because the conversion of very many digits is expensive.
        if not whole or len(text) > len(str(MAX_STEP)) or int(text) > MAX_STEP:
            message = f"odd_steps must be keyed by step, not {shown(key)}"
            refuse(message, "bad_value", column="odd_steps")
        odd[int(text)] = text_of(reason, "odd_steps")
    if len(odd) > MAX_ODD_STEPS:
        refuse(f"over {MAX_ODD_STEPS} odd steps", "bad_value", column="odd_steps")
    return odd


def _jsonable(value: object, key: str, depth: int = 0) -> Any:  # noqa: ANN401 - JSON is any of its types
    if depth > MAX_DEPTH:
        refuse(f"{key} is nested over {MAX_DEPTH} levels", "bad_value", column=key)
    if isinstance(value, Mapping):
        return {
            _storable(str(inner), key): _jsonable(item, key, depth + 1)
            for inner, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_jsonable(item, key, depth + 1) for item in value]
    if isinstance(value, dt.date):
        # YAML parses unquoted dates as date objects, which JSON does not have.
        return value.isoformat()
    if isinstance(value, str):
        return _storable(value, key)
    is_number = (
        math.isfinite(value)
        if isinstance(value, float)
        else isinstance(value, int) and -(1 << 63) <= value < 1 << 63
    )
    if value is not None and not is_number:
        refuse(f"{key} holds {shown(value)}, which JSON cannot say", "bad_value", column=key)
    return value


def _storable(text: str, key: str) -> str:
    """Return a text that PostgreSQL can store as JSON; refuse NUL and lone surrogates."""
    if "\0" in text or any("\ud800" <= char <= "\udfff" for char in text):
        refuse(f"{key} holds a character that cannot be stored", "bad_value", column=key)
    return text


# Keys under which decoders note facts in `SessionMeta.extra`. A sender may write these keys too, so
# malformed values count as absent.
_UNMAPPED: Final = "unmapped"
_NOT_REPLAYED: Final = "not_replayed"
# Maximum number of kinds of unmapped items that are listed; all further kinds are summed as one.
MAX_KINDS: Final = 32
_MAX_TEXT: Final = 400
# Largest count of unmapped items: sums over any number of bodies stay below JSON's largest exact
# integer.
_MOST: Final = 10**12


@dataclass(frozen=True, slots=True)
class Unmapped:
    """Items of one kind in a recording that a decoder could not map to operations."""

    what: str
    """Kind of the items, in the plural, for a person."""
    count: int
    """Number of items."""
    remedy: str | None = None
    """Setting of the recorder that would record the missing data; None where nothing is missing."""


def total(unmapped: Iterable[Unmapped]) -> tuple[Unmapped, ...]:
    """Return the counts by kind summed over several bodies, in descending order."""
    counts: dict[tuple[str, str | None], int] = {}
    for item in unmapped:
        key = (item.what, item.remedy)
        counts[key] = counts.get(key, 0) + item.count
    sums = (
        Unmapped(what, min(count, _MOST), remedy)
        for (what, remedy), count in counts.items()
        if count
    )
    return tuple(sorted(sums, key=lambda item: (-item.count, item.what)))


def note_unmapped(meta: SessionMeta, unmapped: Iterable[Unmapped]) -> SessionMeta:
    """Return metadata that list these unmapped items of the recording instead of earlier items."""
    return replace(meta, extra=with_unmapped(meta.extra, unmapped))


def with_unmapped(document: Mapping[str, Any], unmapped: Iterable[Unmapped]) -> dict[str, Any]:
    """Return a metadata document that lists these unmapped items instead of earlier items."""
    document = {key: value for key, value in document.items() if key != _UNMAPPED}
    kinds = total(unmapped)
    if len(kinds) > MAX_KINDS:
        rest = sum(item.count for item in kinds[MAX_KINDS - 1 :])
        kinds = (*kinds[: MAX_KINDS - 1], Unmapped("things of other kinds", rest))
    if kinds:
        document[_UNMAPPED] = [asdict(item) for item in kinds]
    return document


def unmapped_of(extra: Mapping[str, Any]) -> tuple[Unmapped, ...]:
    """Return the unmapped items that a session's `extra` metadata list."""
    listed = extra.get(_UNMAPPED)
    items: list[Unmapped] = []
    for item in listed[:MAX_KINDS] if isinstance(listed, list) else ():
        if not isinstance(item, Mapping):
            continue
        what, count = _short_text(item.get("what")), item.get("count")
        if what is None or isinstance(count, bool) or not isinstance(count, int) or count < 1:
            continue
        items.append(Unmapped(what, count, _short_text(item.get("remedy"))))
    return total(items)


def _short_text(value: object) -> str | None:
    fits = isinstance(value, str) and 0 < len(value) <= _MAX_TEXT and value.isprintable()
    return str(value) if fits else None


def join_metadata(earlier: SessionMeta, added: SessionMeta) -> SessionMeta:
    """Return the union of two parts' metadata; the counts of unmapped items are summed.

    Raises
    ------
    InvalidMetadataError
        `metadata.conflict`, with the first key on which the parts disagree.
    """
    return parse_metadata(join_documents(metadata_document(earlier), added))


def join_documents(earlier: Mapping[str, Any], added: SessionMeta) -> dict[str, Any]:
    """Return the union of two parts' metadata documents; see `join_metadata`.

    Parameters
    ----------
    earlier : mapping
        Document as returned by `metadata_document`. It is not checked again, because it may have
        thousands of ranks, each of which may add a part.
    """
    more = metadata_document(added)
    unmapped = (*unmapped_of(earlier), *unmapped_of(more))
    first, second = with_unmapped(earlier, ()), with_unmapped(more, ())
    for rank, host in added.hosts.items():
        before = first.get("hosts", {}).get(str(rank), host)
        was_guessed, is_guessed = (
            name in document.get("guessed_hosts", {})
            for name, document in ((before, first), (host, second))
        )
        if before != host and was_guessed != is_guessed:
            # If only one of two host names of a rank is a guess, the other name is kept.
            document = first if was_guessed else second
            document["hosts"] = {
                key: name for key, name in document["hosts"].items() if key != str(rank)
            }
    return with_unmapped(_union(first, second, ""), unmapped)


def agreed_metadata(given: SessionMeta | None, own: SessionMeta, place: str) -> SessionMeta:
    """Return the metadata sent with a body, or the body's own metadata if none were sent.

    Parameters
    ----------
    place : str
        Location of the body's own metadata, for the error message.

    Raises
    ------
    InvalidMetadataError
        `metadata.conflict`: the sizes in the two metadata differ.
    """
    if given is not None and given.sizes != own.sizes:
        message = f"the sizes in the {place} and those given with the body differ"
        raise InvalidMetadataError(message, code="metadata.conflict")
    return given or own


def with_names(meta: SessionMeta, named: Mapping[str, str | Mapping[str, str]]) -> SessionMeta:
    """Return metadata completed by names of machines by rank, given under OpenTelemetry's keys.

    Raises
    ------
    InvalidMetadataError
        `metadata.conflict`: the metadata name another machine for a rank.
    """
    extra = {key: value for key, value in meta.extra.items() if key not in named}
    return parse_metadata({**metadata_document(replace(meta, extra=extra)), **named})


def with_names_of_body(meta: SessionMeta, rank: NDArray[np.int32]) -> SessionMeta:
    """Return a body's metadata with its names for all ranks (node, pod, GPU) assigned to each rank.

    A GPU belongs to one rank, so the GPU's name is dropped if the body has several ranks.

    Raises
    ------
    InvalidMetadataError
        See `with_names`.
    """
    names = names_of_body(meta.extra)
    if not names:
        return meta
    ranks = np.unique(rank).tolist()
    if len(ranks) > 1:
        names.pop(GPU, None)
    named = {key: dict.fromkeys(map(str, ranks), name) for key, name in names.items()}
    return with_names(meta, named) if named else meta


def _union(earlier: Mapping[str, Any], added: Mapping[str, Any], inside: str) -> dict[str, Any]:
    both = dict(earlier)
    for key, value in added.items():
        path = f"{inside}{key}"
        if key not in both:
            both[key] = value
        elif isinstance(both[key], Mapping) and isinstance(value, Mapping):
            both[key] = _union(both[key], value, f"{path}.")
        elif both[key] != value:
            message = f"{path} contradicts what was sent before for this session"
            raise InvalidMetadataError(
                message,
                code="metadata.conflict",
                faults=(Fault("conflict", message, column=path),),
            )
    return both


def not_replayed(meta: SessionMeta, reason: str) -> SessionMeta:
    """Return metadata with the reason why the recording's steps cannot be replayed.

    A profile without labels whose transfers fit no schedule, or a device trace that does not
    distinguish forward from backward, still shows which rank comes last at collectives and how
    step time is spent. Its report has no slowdown; see `app.analysis.report.unreplayed`.

    Parameters
    ----------
    reason : str
        End of a sentence, ``its sends and receives fit no pipeline schedule``; at most 400
        printable characters.

    Examples
    --------
    >>> from app.analysis.trace.model import Sizes
    >>> meta = not_replayed(SessionMeta(Sizes(dp=2, pp=1)), "no computation has a name")
    >>> not_replayed_reason(meta)
    'no computation has a name'
    """
    return replace(meta, extra={**meta.extra, _NOT_REPLAYED: reason})


def not_replayed_reason(meta: SessionMeta) -> str | None:
    """Return why a session's steps cannot be replayed; None if no decoder noted a reason."""
    return _short_text(meta.extra.get(_NOT_REPLAYED))
