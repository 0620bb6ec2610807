"""Place of a rank in its job, from the process groups in its recording.

`torch.distributed` names a group of a device mesh ``mesh_`` followed by its dimension;
Megatron-Core has its own names. The recording of a rank lists only the groups of this rank.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NoReturn

from app.analysis.trace.model import (
    GRADS_REDUCE_SCATTER,
    PARAMS_ALL_GATHER,
    RING,
    SessionMeta,
    Sizes,
)
from app.errors import Fault, InvalidMetadataError


class Dimension(StrEnum):
    """Dimension of parallelism to which a process group belongs."""

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
# Advice to senders if the job's sizes are unknown.
_GIVE: Final = "give the sizes of the job with it (--meta with dp and pp, and tp, cp where used)"
DATA_DIMENSIONS: Final = (Dimension.REPLICA, Dimension.SHARD, Dimension.DATA)
# For groups of each dimension: name of a collective without punctuation → operation type.
DATA_COLLECTIVES: Final = {
    "allgather": PARAMS_ALL_GATHER,
    "reducescatter": GRADS_REDUCE_SCATTER,
    "allreduce": GRADS_REDUCE_SCATTER,
}
TENSOR_COLLECTIVES: Final = {
    "allgather": "tp-all-gather",
    "reducescatter": "tp-reduce-scatter",
    "allreduce": "tp-all-reduce",
}
CONTEXT_COLLECTIVES: Final = {
    "allgather": "cp-all-gather",
    "reducescatter": "cp-reduce-scatter",
    "alltoall": "cp-all-to-all",
    "alltoallv": "cp-all-to-all",
    # A context-parallel ring passes keys and values on by fused calls, or by a send and a receive.
    **dict.fromkeys(("coalesced", "sendrecv", "send", "recv"), RING),
}
OF_DIMENSION: Final = {
    **dict.fromkeys(DATA_DIMENSIONS, DATA_COLLECTIVES),
    Dimension.TENSOR: TENSOR_COLLECTIVES,
    Dimension.CONTEXT: CONTEXT_COLLECTIVES,
}


@dataclass(frozen=True, slots=True)
class Group:
    """A process group: its name, its description, and its global ranks in order."""

    name: str
    description: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RecordedGroups:
    """Sizes of a rank's process groups from its collectives, for recordings that list no ranks."""

    sizes: Mapping[Dimension, int]  # number of ranks of a group by its dimension
    one_pipeline: bool  # pipeline transfers use a group of all ranks


NO_RECORDED_GROUPS: Final = RecordedGroups({}, one_pipeline=False)


@dataclass(frozen=True, slots=True)
class Cell:
    """Sizes of a job, and DP rank and stage of one of its ranks."""

    sizes: Sizes
    dp: int
    pp: int


def dimension_of(description: str) -> Dimension | None:
    """Return the dimension that a group's description names; None if it names none."""
    return next(
        (dimension for pattern, dimension in _NAMES if pattern.fullmatch(description)), None
    )


def cell_of(  # noqa: PLR0913, PLR0917 - sources of a rank's place
    rank: int,
    world: int,
    groups: Sequence[Group],
    stages: Sequence[int],
    meta: SessionMeta | None,
    recorded: RecordedGroups = NO_RECORDED_GROUPS,
) -> Cell:
    """Return the sizes of the job, and the DP rank and stage of a rank.

    Parameters
    ----------
    rank, world : int
        Global rank and number of ranks.
    groups : sequence of Group
        Process groups of the rank; empty if the recording lists none.
    stages : sequence of int
        Pipeline stages that the rank computes; empty if no label names a stage.
    meta : SessionMeta or None
        Metadata given with the recording; its sizes are used if no group has a known description.
    recorded : RecordedGroups
        Sizes of groups from collectives, used if the recording lists no groups.

    Raises
    ------
    InvalidMetadataError
        `metadata.missing`: neither the groups nor `meta` imply the sizes;
        `metadata.world_mismatch`, `metadata.conflict`: they contradict each other.
    """
    own_groups = _by_dimension(rank, groups)
    if not any(dimension in own_groups for dimension in (Dimension.PIPELINE, *DATA_DIMENSIONS)):
        return _unnamed(rank, world, groups, stages, meta, recorded)
    size = {dimension: len(group.ranks) for dimension, group in own_groups.items()}
    place = {dimension: group.ranks.index(rank) for dimension, group in own_groups.items()}
    pp = size.get(Dimension.PIPELINE, 1)
    tp, cp = size.get(Dimension.TENSOR, 1), size.get(Dimension.CONTEXT, 1)
    dp, dp_rank = 1, 0
    for dimension in DATA_DIMENSIONS:
        # Skip the group of all data-parallel ranks: it is the union of the sharding and the
        # replicating group.
        if dimension is Dimension.DATA and dp > 1:
            continue
        dp_rank = dp_rank * size.get(dimension, 1) + place.get(dimension, 0)
        dp *= size.get(dimension, 1)
    sizes = Sizes(dp=dp, pp=pp, tp=tp, cp=cp, vpp=len(stages) or 1)
    if sizes.world == 1 < world:
        # A dimension that spans all ranks uses the default process group, which has no description.
        return _all_in_one(rank, world, stages)
    if sizes.world != world:
        if meta is not None:
            return _by_order(rank, meta.sizes)
        _refuse(
            "world_mismatch",
            f"the recording's process groups make dp * pp * tp * cp = {dp} * {pp} * {tp} * {cp} = "
            f"{sizes.world}, but there are {world} ranks: {_GIVE}",
        )
    if meta is not None and (meta.sizes.dp, meta.sizes.pp, meta.sizes.tp) != (dp, pp, tp):
        _refuse(
            "conflict",
            f"the recording's process groups make dp = {dp}, pp = {pp} and tp = {tp}; the sizes "
            "given with it are others",
        )
    return Cell(sizes if meta is None else meta.sizes, dp_rank, place.get(Dimension.PIPELINE, 0))


def _unnamed(  # noqa: PLR0913, PLR0917 - as `cell_of`
    rank: int,
    world: int,
    groups: Sequence[Group],
    stages: Sequence[int],
    meta: SessionMeta | None,
    recorded: RecordedGroups,
) -> Cell:
    """Return the place of a rank whose data- and pipeline-parallel groups have no description."""
    if meta is not None:
        return _by_order(rank, meta.sizes)
    if any(len(group.ranks) not in (1, world) for group in groups):
        _refuse(
            "missing",
            "the recording's process groups have no names that say what is data and what is "
            f"pipeline parallel: {_GIVE}",
        )
    if not groups and world > 1 and not recorded.one_pipeline:
        return _by_sizes(rank, world, stages, recorded)
    return _all_in_one(rank, world, stages)


def _by_sizes(rank: int, world: int, stages: Sequence[int], recorded: RecordedGroups) -> Cell:
    """Return the place of a rank from group sizes, assuming the default rank order.

    A place that disagrees with the stages that the rank computes is refused.
    """
    size = recorded.sizes
    pp = size.get(Dimension.PIPELINE, 1)
    tp, cp = size.get(Dimension.TENSOR, 1), size.get(Dimension.CONTEXT, 1)
    parts = size.get(Dimension.REPLICA, 1) * size.get(Dimension.SHARD, 1)
    dp = parts if parts > 1 else size.get(Dimension.DATA, 1)
    cell = _by_order(rank, Sizes(dp=dp, pp=pp, tp=tp, cp=cp, vpp=len(stages) or 1))
    # Several chunks of a rank are assigned to stages round-robin, or as a V (forth and back).
    around = {stage % pp for stage in stages}
    there_and_back = {min(stage, 2 * pp - 1 - stage) for stage in stages}
    fits = around <= {cell.pp} or there_and_back == {cell.pp}
    fits = fits and (pp == 1 or bool(stages))
    if not size or cell.sizes.world != world or not fits:
        at = f" (rank {rank} of {world} runs stage {stages[0]})" if stages else ""
        _refuse(
            "missing",
            "no process groups are listed (pg_config of distributedInfo), so that nothing says "
            f"which ranks are data and which are pipeline parallel{at}: {_GIVE}",
        )
    return cell


def pipeline_ranks(rank: int, groups: Sequence[Group], cell: Cell) -> tuple[int, ...]:
    """Return the global ranks of the pipeline that contains a rank, by stage."""
    pipeline = _by_dimension(rank, groups).get(Dimension.PIPELINE)
    if pipeline is not None:
        return pipeline.ranks
    apart = cell.sizes.world // cell.sizes.pp
    return tuple(rank + (stage - cell.pp) * apart for stage in range(cell.sizes.pp))


def is_of_pipeline(description: str) -> bool:
    """Return whether a group with this description transfers between pipeline stages."""
    return not description or dimension_of(description) in {None, Dimension.PIPELINE}


def _all_in_one(rank: int, world: int, stages: Sequence[int]) -> Cell:
    """Return a rank's place in a job with one dimension of parallelism.

    The dimension is the pipeline if stages are labelled, else data parallelism. In a pipeline of
    all ranks, each rank runs the stage with its own number, and possibly other stages.
    """
    if not stages:
        return Cell(Sizes(dp=world, pp=1), rank, 0)
    if rank not in stages:
        _refuse(
            "missing",
            f"rank {rank} runs stage {stages[0]}, so that not all {world} ranks are one pipeline, "
            f"and no process group says what is data and what is pipeline parallel: {_GIVE}",
        )
    return Cell(Sizes(dp=1, pp=world, vpp=len(stages)), 0, rank)


def _by_dimension(rank: int, groups: Sequence[Group]) -> Mapping[Dimension, Group]:
    own_groups: dict[Dimension, Group] = {}
    for group in groups:
        dimension = dimension_of(group.description)
        if dimension is not None and rank in group.ranks:
            own_groups.setdefault(dimension, group)
    return own_groups


def _by_order(rank: int, sizes: Sizes) -> Cell:
    """Return a rank's place in the default rank order.

    Tensor- and context-parallel ranks vary fastest, pipeline stages slowest.
    """
    inner = sizes.tp * sizes.cp
    return Cell(sizes, rank // inner % sizes.dp, rank // (inner * sizes.dp))


def _refuse(code: str, message: str) -> NoReturn:
    raise InvalidMetadataError(
        message, code=f"metadata.{code}", faults=(Fault(code, message, column="distributedInfo"),)
    )
