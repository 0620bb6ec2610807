"""Decoder of one rank's reduced profiler recording (`Scan`) to operations."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from app.analysis.trace.limits import MAX_WORLD, Limits, refuse_body
from app.analysis.trace.metadata import Unmapped, not_replayed, total
from app.analysis.trace.model import ABSENT, SessionMeta
from app.analysis.trace.rank_metadata import is_name, recorder_metadata
from app.analysis.trace.recordings.profiler.collectives import ALL_TO_ALL, kind_of
from app.analysis.trace.recordings.profiler.contents import FindNames, refuse_without_steps
from app.analysis.trace.recordings.profiler.labelled_pipeline import (
    TRANSFERS,
    Advice,
    LabelledReader,
)
from app.analysis.trace.recordings.profiler.pipeline_work import (
    FUSED,
    issues_transfers,
    transfers_of,
)
from app.analysis.trace.recordings.profiler.process_groups import (
    Dimension,
    RecordedGroups,
    cell_of,
    dimension_of,
    pipeline_ranks,
)
from app.analysis.trace.recordings.profiler.scan import Scan
from app.analysis.trace.recordings.profiler.steps import find_steps
from app.analysis.trace.recordings.profiler.unlabelled_data_parallel import (
    Unlabelled,
    add_operations,
    place_of,
    read_unlabelled,
)
from app.analysis.trace.recordings.profiler.unlabelled_pipeline import (
    Place,
    read_pipeline,
    steps_between,
)
from app.analysis.trace.recordings.recording import Recording
from app.errors import InvalidMetadataError

_NO_STEPS: Final = (
    "nothing in the recording says where a step ends: call prof.step() at the end of each"
)
_NOTHING: Final = (
    "the profiler recorded no operation, as where a job ends before the next steps of its schedule"
)
# Reason why steps cannot be replayed. It is the same text for every rank, because the metadata of
# all ranks must agree; the reasons of single ranks are listed as unmapped items.
_NO_SCHEDULE: Final = "its sends and receives fit no pipeline schedule"


def decode_scan(  # noqa: PLR0913 - the reader of a format gives its advice and its names
    scan: Scan,
    meta: SessionMeta | None,
    limits: Limits,
    advice: Advice,
    *,
    part: bool,
    find_names: FindNames,
) -> Recording:
    """Decode the scan of a recording and check its operations.

    Parameters
    ----------
    find_names : callable
        Reads the recording again for the names in the refusal of a recording without steps.

    Raises
    ------
    InvalidTraceError
        `trace.no_rows`: the recording is empty; `trace.unknown_rank`; see
        `refuse_without_steps`. Also the errors of `Rows.trace`.
    InvalidMetadataError
        See `cell_of`.
    """
    own_on_device = scan.own is not None and not any(item.label.own for item in scan.labelled)
    if own_on_device:
        scan.labelled += scan.labelled_on_device
    if scan.own is not None and not any(item.label.own for item in scan.labelled):
        scan.own.refuse_all()
    scan.drop_copies()
    is_pipeline = not scan.labelled and issues_transfers(scan)
    unlabelled = None if scan.labelled or is_pipeline else read_unlabelled(scan)
    if scan.is_empty:
        refuse_body("no_rows", _NOTHING)
    if not scan.labelled:
        _check_training(scan, unlabelled, advice, find_names)
    if scan.rank is None and meta is not None and meta.sizes.world == 1:
        scan.rank = 0
    if scan.rank is None:
        refuse_body("unknown_rank", advice.unknown_rank)
    if is_pipeline:
        return _decode_pipeline(scan, meta, limits, advice, part=part)
    if unlabelled is not None:
        return _decode_unlabelled(scan, scan.rank, unlabelled, meta, limits, part=part)
    rank, world = scan.rank, _world(scan, meta)
    stages = sorted({item.label.stage for item in scan.labelled} - {ABSENT})
    cell = cell_of(rank, world, scan.groups, stages, meta, _recorded_groups(scan, world))
    chunk_of = {stage: mc for mc, stage in enumerate(stages)}
    reader = LabelledReader(scan, rank, cell, chunk_of, limits, advice, own_on_device=own_on_device)
    reader.read()
    session_meta = _named(meta or SessionMeta(cell.sizes), scan, rank)
    return Recording(reader.rows.trace(session_meta, part=part), reader.unmapped())


def _check_training(
    scan: Scan, unlabelled: Unlabelled | None, advice: Advice, find_names: FindNames
) -> None:
    """Refuse a recording without labels that shows no training step that can be read.

    Parameters
    ----------
    unlabelled : Unlabelled or None
        None for a stage of a pipeline; stages of an inference send and receive as well.
    """
    if unlabelled is None:
        if not (len(scan.gradients) or scan.optimizers):
            refuse_without_steps(scan, advice, find_names, transfers=len(scan.works))
        return
    transfers = _transfers(scan, unlabelled)
    if transfers or not unlabelled.complete:
        refuse_without_steps(scan, advice, find_names, transfers=transfers)


def _recorded_groups(scan: Scan, world: int) -> RecordedGroups:
    """Return the sizes of a scan's process groups, except groups with several recorded sizes."""
    sizes: dict[Dimension, set[int]] = {}
    pipelines = set()
    for group in scan.others_groups:
        dimension = dimension_of(group.description)
        if dimension is not None:
            sizes.setdefault(dimension, set()).add(len(group.ranks))
    for work in scan.works:
        dimension = dimension_of(work.description)
        if dimension is not None and work.size is not None and work.size > 0:
            sizes.setdefault(dimension, set()).add(work.size)
        elif dimension is None and work.name in TRANSFERS and work.size is not None:
            pipelines.add(work.size)
    agreed = {dimension: min(values) for dimension, values in sizes.items() if len(values) == 1}
    return RecordedGroups(agreed, one_pipeline=pipelines == {world} and not sizes)


def _transfers(scan: Scan, unlabelled: Unlabelled) -> int:
    """Return the number of sends and receives of a rank, except in context-parallel rings.

    A send-receive kernel exchanges tokens where a rank calls all-to-alls.
    """
    works = unlabelled.collectives if unlabelled.on_device else scan.works
    exchanges = any(kind_of(work.name) == ALL_TO_ALL for work in scan.works)
    transfers = TRANSFERS - FUSED if exchanges else TRANSFERS
    return sum(
        work.name in transfers and dimension_of(work.description) is not Dimension.CONTEXT
        for work in works
    )


def _decode_pipeline(
    scan: Scan, meta: SessionMeta | None, limits: Limits, advice: Advice, *, part: bool
) -> Recording:
    """Decode the scan of a pipeline rank without labels."""
    rank, world = scan.rank or 0, _world(scan, meta)
    cell = cell_of(rank, world, scan.groups, (rank,), meta, _recorded_groups(scan, world))
    steps = find_steps(scan, ())
    if not steps.begins:
        refuse_body("no_steps", _NO_STEPS)
    when = steps_between(steps, scan.ends if scan.steps else None)
    place = Place(cell.pp, pipeline_ranks(rank, scan.groups, cell))
    pipeline = read_pipeline(scan, place, transfers_of(scan), when)
    sizes = cell.sizes
    if meta is None and pipeline.schedule is not None:
        sizes = replace(sizes, vpp=pipeline.schedule.chunks)
    cell = replace(cell, sizes=sizes)
    reader = LabelledReader(scan, rank, cell, {}, limits, advice, own_on_device=False)
    reader.read_pipeline(pipeline)
    session_meta = _named(meta or SessionMeta(sizes), scan, rank)
    if not pipeline.operations:
        session_meta = not_replayed(session_meta, _NO_SCHEDULE)
    return Recording(reader.rows.trace(session_meta, part=part), reader.unmapped())


def _decode_unlabelled(  # noqa: PLR0913 - facts of the rank
    scan: Scan,
    rank: int,
    unlabelled: Unlabelled,
    meta: SessionMeta | None,
    limits: Limits,
    *,
    part: bool,
) -> Recording:
    """Decode the scan of a data-parallel rank without labels."""
    if scan.world is None and meta is None:
        scan.world = unlabelled.largest_group
    cell = place_of(unlabelled, scan, rank, _world(scan, meta), meta)
    rows, lost = add_operations(unlabelled, scan, rank, cell, limits)
    session_meta = _named(meta or SessionMeta(cell.sizes), scan, rank)
    session_meta = replace(
        session_meta, extra={**session_meta.extra, **recorder_metadata(on_host=unlabelled.on_host)}
    )
    left_out = total(Unmapped(what, count, remedy) for (what, remedy), count in lost.items())
    return Recording(rows.trace(session_meta, part=part), left_out)


def _named(meta: SessionMeta, scan: Scan, rank: int) -> SessionMeta:
    """Return metadata completed by the recorded names of the rank's host and GPU."""
    hosts = {rank: scan.host} if scan.host and is_name(scan.host) else {}
    gpus = {rank: scan.gpu} if scan.gpu and is_name(scan.gpu) else {}
    return replace(meta, hosts={**hosts, **meta.hosts}, gpus={**gpus, **meta.gpus})


def _world(scan: Scan, meta: SessionMeta | None) -> int:
    if meta is not None:
        world = meta.sizes.world
    elif scan.world is not None:
        world = scan.world
    else:
        raise InvalidMetadataError(
            "the recording does not say how many ranks there are: give the sizes with it",
            code="metadata.missing",
        )
    if scan.rank is None or not 0 <= scan.rank < world <= MAX_WORLD:
        refuse_body("rank_out_of_range", f"rank {scan.rank} is outside of {world} ranks")
    return world
