"""Where a rank stands in its job, by the process groups that its recording names.

`torch.distributed` names a group of a device mesh ``mesh_`` and its dimension; Megatron-Core names
its own. The recording of one rank has the groups that this rank is in.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NoReturn

from app.analysis.trace.model import SessionMeta, Sizes
from app.errors import Fault, InvalidMetadataError


class Dimension(StrEnum):
    """What the ranks of a group share out."""

    PIPELINE = "pp"
    REPLICA = "dp_replicate"
    SHARD = "dp_shard"
    DATA = "dp"
    TENSOR = "tp"
    CONTEXT = "cp"


_NAMES: Final[tuple[tuple[re.Pattern[str], Dimension], ...]] = tuple(
    (re.compile(pattern, re.IGNORECASE), dimension)
    for pattern, dimension in (
        (r"mesh_pp|mesh_pipe(line)?|PIPELINE_MODEL_PARALLEL_GROUP", Dimension.PIPELINE),
        (r"mesh_dp_replicate|mesh_replicate", Dimension.REPLICA),
        (r"mesh_dp_shard|mesh_fsdp|mesh_shard", Dimension.SHARD),
        (r"mesh_dp|mesh_data|DATA_PARALLEL_GROUP", Dimension.DATA),
        (r"mesh_tp|mesh_tensor|TENSOR_MODEL_PARALLEL_GROUP", Dimension.TENSOR),
        (r"mesh_cp|mesh_context|CONTEXT_PARALLEL_GROUP", Dimension.CONTEXT),
    )
)
DATA_DIMENSIONS: Final = (Dimension.REPLICA, Dimension.SHARD, Dimension.DATA)


@dataclass(frozen=True, slots=True)
class Group:
    """A process group: its name, what its maker calls it, and its global ranks in order."""

    name: str
    description: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Cell:
    """Where a rank stands: the sizes of its job, and its own DP rank and stage."""

    sizes: Sizes
    dp: int
    pp: int


def dimension_of(description: str) -> Dimension | None:
    """Return what the ranks of a group share out, None where its description does not say."""
    return next(
        (dimension for pattern, dimension in _NAMES if pattern.fullmatch(description)), None
    )


def cell_of(
    rank: int, world: int, groups: Sequence[Group], stages: Sequence[int], meta: SessionMeta | None
) -> Cell:
    """Return where a rank stands.

    Parameters
    ----------
    rank, world : int
        Global rank and number of ranks.
    groups : sequence of Group
        Those that the rank is in.
    stages : sequence of int
        Stages that the rank computes; empty where nothing labels a stage.
    meta : SessionMeta or None
        What was given with the recording; its sizes win where no group is named.

    Raises
    ------
    InvalidMetadataError
        `metadata.missing`: neither the groups nor `meta` say the sizes; `metadata.world_mismatch`,
        `metadata.conflict`: they contradict each other.
    """
    known = _by_dimension(rank, groups)
    if not any(dimension in known for dimension in (Dimension.PIPELINE, *DATA_DIMENSIONS)):
        if meta is not None:
            return _by_order(rank, meta.sizes)
        if any(len(group.ranks) not in (1, world) for group in groups):
            _refuse(
                "missing",
                "the recording's process groups have no names that say what is data and what is "
                "pipeline parallel: give the sizes of the job with it",
            )
        return _all_in_one(rank, world, stages)
    size = {dimension: len(group.ranks) for dimension, group in known.items()}
    place = {dimension: group.ranks.index(rank) for dimension, group in known.items()}
    pp = size.get(Dimension.PIPELINE, 1)
    tp, cp = size.get(Dimension.TENSOR, 1), size.get(Dimension.CONTEXT, 1)
    dp, dp_rank = 1, 0
    for dimension in DATA_DIMENSIONS:
        # A group of all data-parallel ranks next to those of its two parts says the same again.
        if dimension is Dimension.DATA and dp > 1:
            continue
        dp_rank = dp_rank * size.get(dimension, 1) + place.get(dimension, 0)
        dp *= size.get(dimension, 1)
    sizes = Sizes(dp=dp, pp=pp, tp=tp, cp=cp, vpp=len(stages) or 1)
    if sizes.world == 1 < world:
        # A dimension of all ranks is the default group itself, which has no name of its own.
        return _all_in_one(rank, world, stages)
    if sizes.world != world:
        if meta is not None:
            return _by_order(rank, meta.sizes)
        _refuse(
            "world_mismatch",
            f"the recording's process groups make dp * pp * tp * cp = {dp} * {pp} * {tp} * {cp} = "
            f"{sizes.world}, but there are {world} ranks: give the sizes of the job with it",
        )
    if meta is not None and (meta.sizes.dp, meta.sizes.pp, meta.sizes.tp) != (dp, pp, tp):
        _refuse(
            "conflict",
            f"the recording's process groups make dp = {dp}, pp = {pp} and tp = {tp}; the sizes "
            "given with it are others",
        )
    return Cell(sizes if meta is None else meta.sizes, dp_rank, place.get(Dimension.PIPELINE, 0))


def _all_in_one(rank: int, world: int, stages: Sequence[int]) -> Cell:
    """Place a rank of a job with one kind of parallelism: a pipeline where stages are labelled.

    In a pipeline of all ranks each runs the stage of its own number, and maybe others.
    """
    if not stages:
        return Cell(Sizes(dp=world, pp=1), rank, 0)
    if rank not in stages:
        _refuse(
            "missing",
            f"rank {rank} runs stage {stages[0]}, so that not all {world} ranks are one pipeline, "
            "and no process group says what is data and what is pipeline parallel: give the sizes "
            "of the job with it",
        )
    return Cell(Sizes(dp=1, pp=world, vpp=len(stages)), 0, rank)


def _by_dimension(rank: int, groups: Sequence[Group]) -> Mapping[Dimension, Group]:
    found: dict[Dimension, Group] = {}
    for group in groups:
        dimension = dimension_of(group.description)
        if dimension is not None and rank in group.ranks:
            found.setdefault(dimension, group)
    return found


def _by_order(rank: int, sizes: Sizes) -> Cell:
    """Place a rank in the default order: tensor and context fastest, then data, then pipeline."""
    inner = sizes.tp * sizes.cp
    return Cell(sizes, rank // inner % sizes.dp, rank // (inner * sizes.dp))


def _refuse(code: str, message: str) -> NoReturn:
    raise InvalidMetadataError(
        message, code=f"metadata.{code}", faults=(Fault(code, message, column="distributedInfo"),)
    )
