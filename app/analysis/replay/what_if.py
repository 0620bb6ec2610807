"""What-if questions: step times if chosen operations have ideal, recorded or scaled durations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from app.analysis.replay.adaptations.kind import Name
from app.analysis.replay.engine.simulator import Replacement
from app.analysis.replay.host_delays import launched_step_times
from app.analysis.replay.layout.dense import MAX_NAMED_FAULTS, FloatArray
from app.analysis.replay.metrics import MERGED_TYPES, present_types
from app.analysis.replay.session import Replayed, ShapeGroup, filled_ns
from app.analysis.trace import model as ops
from app.errors import Fault, InvalidQuestionError

NS: Final = 1e-9
# Mask of nodes, shape (nodes,), and mask of the places of these nodes, shape (steps, dp, pp).
_Mask: TypeAlias = tuple[Sequence[bool], NDArray[np.bool_]]
# Largest scale of durations. With larger scales sums of durations may overflow, and an operation
# that slow would be a hang.
MOST_SCALE: Final = 1000.0

# Names of op types in questions → recorded op types: recorded names, the paper's names, and the
# merged names in reports.
TYPE_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    **{name: (name,) for name in ops.REPLAYED_OP_TYPES},
    "params-sync": (ops.PARAMS_ALL_GATHER,),
    "grads-sync": (ops.GRADS_REDUCE_SCATTER,),
    **{
        merged: tuple(name for name, other in MERGED_TYPES.items() if other == merged)
        for merged in dict.fromkeys(MERGED_TYPES.values())
    },
}


class BaseDurations(StrEnum):
    """Base of the durations in a what-if question: recorded, ideal, or those of peers.

    ``peers``, in changes only: the median of the DP ranks of the same stage that no such change
    selects, as if a worker were replaced. (An ideal duration is a mean that includes the worker.)
    """

    RECORDED = "recorded"
    IDEAL = "ideal"
    PEERS = "peers"


@dataclass(frozen=True, slots=True)
class Selection:
    """Conditions that select operations; an empty tuple selects all values.

    `op_types` are keys of `TYPE_NAMES`.
    """

    op_types: tuple[str, ...] = ()
    steps: tuple[int, ...] = ()
    stages: tuple[int, ...] = ()
    dp_ranks: tuple[int, ...] = ()
    workers: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Change:
    """Change of selected operations: their duration becomes the `base` duration times `scale`."""

    select: Selection
    base: BaseDurations
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Question:
    """Changes to a session; of several changes to an operation, the last one applies.

    `without` are adaptations that are switched off; see `prepare_replay`.
    """

    base: BaseDurations = BaseDurations.RECORDED
    changes: tuple[Change, ...] = ()
    without: tuple[Name, ...] = ()


@dataclass(frozen=True, slots=True)
class Against:
    """Reference to which gains are relative: that of the session's headline."""

    kind: str  # ``causes``, ``launches``: the job without its causes; ``published``: ideal of S
    slowdown: float  # of the session as recorded


@dataclass(frozen=True, slots=True, eq=False)
class QuestionAnswer:
    """Step times of a question, shape (steps,), seconds: as recorded, ideal, and changed.

    `restores` is whether all changes keep scale 1: recorded, ideal or peers' durations only.
    """

    steps: NDArray[np.int64]
    simulated_s: FloatArray
    ideal_s: FloatArray
    answer_s: FloatArray
    restores: bool = True

    @property
    def published(self) -> Against:
        """Return the reference of the published metric: the ideal of S."""
        return Against("published", float(self.simulated_s.sum() / self.ideal_s.sum()))

    def as_document(self, against: Against) -> dict[str, Any]:
        """Return the answer as a dictionary of JSON types.

        `gain` is the saved share of the recorded step time, relative to the reference of the
        headline, as for a fix: changes that only restore durations gain no more than the job loses.
        `replayed_step_time_s` is the result of the replay itself. `slowdown` is S with the changes.
        `reference` has the headline's slowdown with the changes, and the step time to which it is
        relative: the recorded step time ÷ the headline's slowdown, so that a session without
        changes has its headline here.
        """
        now, replayed = float(np.mean(self.simulated_s)), float(np.mean(self.answer_s))
        reference_s = now / against.slowdown
        then = max(replayed, reference_s) if self.restores else replayed
        return {
            "schema": "paceline.what-if/1",
            "step_time_s": then,
            "replayed_step_time_s": replayed,
            "simulated_step_time_s": now,
            "ideal_step_time_s": float(np.mean(self.ideal_s)),
            "gain": 1 - then / now,
            "slowdown": float(self.answer_s.sum() / self.ideal_s.sum()),
            "reference": {
                "kind": against.kind,
                "step_time_s": reference_s,
                "slowdown": then / reference_s,
            },
            "steps": self.steps.tolist(),
            "step_times_s": self.answer_s.tolist(),
        }


def answer(replayed: Replayed, question: Question) -> QuestionAnswer:
    """Return the step times of a session after the changes of a question.

    Parameters
    ----------
    replayed : Replayed
        Session, prepared without the adaptations that the question switches off.

    Raises
    ------
    InvalidQuestionError
        A change selects a type, step, stage, DP rank or worker that the session does not have, or
        selects no operation.
    """
    faults = tuple(islice(_faults(replayed, question), MAX_NAMED_FAULTS))
    if faults:
        raise InvalidQuestionError(faults[0].message, faults=faults)
    simulated = replayed.over_steps(
        lambda group: group.simulator.step_times([group.simulator.keep()])[0]
    )
    ideal = replayed.over_steps(lambda group: group.simulator.ideal_step_times())
    _check_peers(replayed, question)
    if any(change.base is BaseDurations.PEERS for change in question.changes):
        # Recorded launch delays are replayed, as in the replay of fixes: late launches on other
        # workers cost time once the slow worker no longer hides them.
        as_it_is, otherwise = replayed.over_steps(
            lambda group: launched_step_times(group, _in_question(group, question))
        ).T
        changed = simulated - (as_it_is - otherwise) / NS
    else:
        changed = replayed.over_steps(
            lambda group: group.simulator.replaced_step_times(_in_question(group, question))[0]
        )
    restores = all(change.scale == 1 for change in question.changes)
    return QuestionAnswer(replayed.steps, simulated * NS, ideal * NS, changed * NS, restores)


def _check_peers(replayed: Replayed, question: Question) -> None:
    """Raise `InvalidQuestionError` if changes replace all DP ranks of a stage: no peer remains."""
    by_peers = [change for change in question.changes if change.base is BaseDurations.PEERS]
    for group in replayed.groups if by_peers else ():
        masks = [_mask(group, change.select) for change in by_peers]
        stages = np.arange(group.layout.pp)
        replaced = np.any(
            [
                places & np.isin(stages, group.layout.nodes.pp[np.array(nodes)])
                for nodes, places in masks
            ],
            axis=0,
        )
        alone = np.flatnonzero(replaced.all(axis=1).any(axis=0))
        if alone.size:
            message = f"All DP ranks of stage {alone[0]} are replaced: none is left as a peer"
            column = f"changes[{question.changes.index(by_peers[0])}].select"
            fault = Fault("no_peers", message, column=column)
            raise InvalidQuestionError(message, faults=(fault,))


def _faults(replayed: Replayed, question: Question) -> Iterator[Fault]:
    """Yield a fault for each empty selection, and for each value that the session lacks."""
    for i, change in enumerate(question.changes):
        path = f"changes[{i}].select"
        if change.select == Selection():
            yield Fault("selects_all", "A change has to select something", column=path)
        for key, message in _absent(replayed, change.select):
            yield Fault("absent", message, column=f"{path}.{key}")


def _absent(replayed: Replayed, select: Selection) -> Iterator[tuple[str, str]]:
    """Yield the key of each selected value that the session lacks, and a message."""
    dp, pp = replayed.layout.dp, replayed.layout.pp
    steps, types = set(replayed.steps.tolist()), set(present_types(replayed))

    def is_replayed(name: str) -> bool:
        return not types.isdisjoint(TYPE_NAMES[name])

    conditions: tuple[tuple[str, Sequence[Any], Callable[[Any], bool], str], ...] = (
        ("op_types", select.op_types, is_replayed, "{} in its replay"),
        ("steps", select.steps, lambda step: step in steps, "step {}"),
        ("stages", select.stages, lambda stage: stage < pp, "stage {}"),
        ("dp_ranks", select.dp_ranks, lambda rank: rank < dp, "DP rank {}"),
        ("workers", select.workers, lambda cell: cell[0] < dp and cell[1] < pp, "worker {}"),
    )
    for key, values, is_there, what in conditions:
        for value in values:
            if not is_there(value):
                yield key, f"The session has no {what.format(value)}"


def _in_question(group: ShapeGroup, question: Question) -> Replacement:
    """Return the durations of all nodes after the changes of a question."""
    masks = [_mask(group, change.select) for change in question.changes]
    replaced = [
        mask
        for change, mask in zip(question.changes, masks, strict=True)
        if change.base is BaseDurations.PEERS
    ]

    def of(node: int, steps: slice) -> FloatArray:
        result = _durations(group, question.base, node, steps, ())
        stage = int(group.layout.nodes.pp[node])
        for change, (nodes, lanes) in zip(question.changes, masks, strict=True):
            selected = lanes[steps, :, stage]
            # Most questions select few operations, so medians are computed for selected nodes only.
            if nodes[node] and selected.any():
                changed = _durations(group, change.base, node, steps, replaced) * change.scale
                result = np.where(selected, changed, result)
        return result

    nodes = np.arange(len(group.layout.nodes))

    def times(steps: slice) -> FloatArray:
        shape = group.durations.recorded_ns[0, steps].shape
        return np.stack([np.broadcast_to(of(node, steps), shape) for node in nodes.tolist()])

    return Replacement(nodes, times)


def _durations(
    group: ShapeGroup, base: BaseDurations, node: int, steps: slice, replaced: Sequence[_Mask]
) -> FloatArray:
    """Return a node's durations on the given base, broadcastable to shape (steps, dp), ns."""
    if base is BaseDurations.IDEAL:
        return np.asarray(group.durations.ideal_ns[node])
    recorded = group.durations.recorded_ns[node, steps]
    if base is BaseDurations.RECORDED:
        return recorded
    stage, padding = int(group.layout.nodes.pp[node]), group.layout.padding
    peers = filled_ns(group)[node, steps].copy()
    for nodes, lanes in replaced:
        if nodes[node]:
            peers[lanes[steps, :, stage]] = np.nan
    typical = np.asarray(np.nanmedian(peers, axis=1))[:, None]
    if padding is None:
        return typical
    # Empty places keep the duration 0, so that each rank keeps its number of microbatches.
    return np.where(padding.of(np.array([node]), steps)[0], 0.0, typical)


def _mask(group: ShapeGroup, select: Selection) -> _Mask:
    """Return a mask of selected nodes, and a mask of their places, shape (steps, dp, pp)."""
    layout = group.layout
    nodes = np.ones(len(layout.nodes), dtype=bool)
    if select.op_types:
        names = [name for given in select.op_types for name in TYPE_NAMES[given]]
        nodes &= layout.of_types(*names)
    if select.stages:
        nodes &= np.isin(layout.nodes.pp, select.stages)
    steps = (
        np.isin(layout.steps, select.steps) if select.steps else np.ones(len(layout.steps), bool)
    )
    cells = np.ones((layout.dp, layout.pp), dtype=bool)
    if select.dp_ranks:
        cells &= np.isin(np.arange(layout.dp), select.dp_ranks)[:, None]
    if select.workers:
        chosen = np.zeros_like(cells)
        chosen[tuple(np.array(select.workers).T)] = True
        cells &= chosen
    return nodes.tolist(), steps[:, None, None] & cells
