"""Questions of one's own: the step time if these operations took their ideal, or a scaled, time."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.trace import model as ops
from app.analysis.whatif.layout import FloatArray
from app.analysis.whatif.metrics import MERGED_TYPES
from app.analysis.whatif.session import Group, Replayed
from app.analysis.whatif.variants import Replacement
from app.errors import Fault, InvalidQuestionError

NS: Final = 1e-9

# The paper's names, and those that reports merge types under.
TYPE_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    **{name: (name,) for name in ops.REPLAYED_OP_TYPES},
    "params-sync": (ops.PARAMS_ALL_GATHER,),
    "grads-sync": (ops.GRADS_REDUCE_SCATTER,),
    **{
        merged: tuple(name for name, other in MERGED_TYPES.items() if other == merged)
        for merged in dict.fromkeys(MERGED_TYPES.values())
    },
}


class Base(StrEnum):
    """What operations take that no change selects."""

    RECORDED = "recorded"
    IDEAL = "ideal"


@dataclass(frozen=True, slots=True)
class Selection:
    """Operations that meet every condition given; an empty tuple is no condition."""

    op_types: tuple[str, ...] = ()
    steps: tuple[int, ...] = ()
    stages: tuple[int, ...] = ()
    dp_ranks: tuple[int, ...] = ()
    workers: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Change:
    """Selected operations take their `base` duration times `scale`."""

    select: Selection
    base: Base
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Question:
    """Changes to a session; of several that select an operation the last one holds."""

    base: Base = Base.RECORDED
    changes: tuple[Change, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """Step times in seconds, shape (steps,): as simulated today, ideal, and in question."""

    steps: NDArray[np.int64]
    simulated_s: FloatArray
    ideal_s: FloatArray
    answer_s: FloatArray

    def as_document(self) -> dict[str, Any]:
        """Return JSON types; `gain` is the share of today's step time that is saved."""
        now, then = float(self.simulated_s.mean()), float(self.answer_s.mean())
        return {
            "schema": "paceline.what-if/1",
            "step_time_s": then,
            "simulated_step_time_s": now,
            "ideal_step_time_s": float(self.ideal_s.mean()),
            "gain": 1 - then / now,
            "slowdown": float(self.answer_s.sum() / self.ideal_s.sum()),
            "steps": self.steps.tolist(),
            "step_times_s": self.answer_s.tolist(),
        }


def answer(replayed: Replayed, question: Question) -> Answer:
    """Replay a session as a question changes it.

    Raises
    ------
    InvalidQuestionError
        A change selects a step, stage, DP rank or worker that the session does not have, or
        nothing at all.
    """
    _check(replayed, question)
    simulated = replayed.over_steps(
        lambda group: group.simulator.step_times([group.simulator.keep()])[0]
    )
    ideal = replayed.over_steps(
        lambda group: np.full(len(group.layout.steps), group.simulator.ideal_step_time())
    )
    changed = replayed.over_steps(
        lambda group: group.simulator.replaced_step_times(_in_question(group, question))[0]
    )
    return Answer(replayed.steps, simulated * NS, ideal * NS, changed * NS)


def parse_question(document: Mapping[str, Any]) -> Question:
    """Read a question from JSON types.

    ``{"base": "recorded", "changes": [{"select": {"op_types": [], "steps": [], "stages": [],
    "dp_ranks": [], "workers": [[0, 0]]}, "duration": "ideal", "scale": 1.0}]}``

    Raises
    ------
    InvalidQuestionError
        With every fault and its path.
    """
    faults: list[Fault] = []
    base = _one_of(document.get("base", "recorded"), "base", faults)
    changes = document.get("changes", [])
    if not isinstance(changes, list) or not changes:
        faults.append(Fault("no_changes", "There has to be a list of changes", column="changes"))
        changes = []
    parsed = [_change(entry, f"changes[{i}]", faults) for i, entry in enumerate(changes)]
    unknown = set(document) - {"base", "changes"}
    faults += [Fault("unknown_key", f"There is no {key!r}", column=key) for key in sorted(unknown)]
    if faults:
        raise InvalidQuestionError(faults[0].message, faults=tuple(faults))
    return Question(base, tuple(parsed))


def parse_selection(text: str) -> Selection:
    """Read a selection as the command line writes it: ``stage=3,op=forward-compute|optimizer``.

    Keys are ``op``, ``step``, ``stage``, ``dp`` and ``worker`` (``DP:STAGE``); several values of a
    key are separated by ``|``.

    Raises
    ------
    InvalidQuestionError
        With the part that cannot be read.
    """
    readers: dict[str, tuple[str, Callable[[str], Any]]] = {
        "op": ("op_types", str),
        "step": ("steps", int),
        "stage": ("stages", int),
        "dp": ("dp_ranks", int),
        "worker": ("workers", lambda value: [int(part) for part in value.split(":")]),
    }
    document: dict[str, list[Any]] = {}
    for part in text.split(","):
        key, _, values = part.partition("=")
        name, read = readers.get(key.strip(), ("", str))
        try:
            document[name] = [read(value.strip()) for value in values.split("|")]
        except ValueError:
            name = ""
        if not name or not values:
            message = f"{part!r} is not one of op=, step=, stage=, dp=, worker=DP:STAGE"
            raise InvalidQuestionError(message, faults=(Fault("selection", message, column=part),))
    faults: list[Fault] = []
    selection = _selection(document, text, faults)
    if faults:
        raise InvalidQuestionError(faults[0].message, faults=tuple(faults))
    return selection


def _change(entry: object, path: str, faults: list[Fault]) -> Change:
    if not isinstance(entry, dict):
        faults.append(Fault("type", f"{path} has to be an object", column=path))
        return Change(Selection(), Base.IDEAL)
    unknown = set(entry) - {"select", "duration", "scale"}
    faults += [
        Fault("unknown_key", f"There is no {key!r}", column=f"{path}.{key}")
        for key in sorted(map(str, unknown))
    ]
    select = entry.get("select", {})
    if not isinstance(select, dict):
        faults.append(Fault("type", f"{path}.select has to be an object", column=f"{path}.select"))
        select = {}
    scale = entry.get("scale", 1.0)
    if isinstance(scale, bool) or not isinstance(scale, int | float) or not 0 <= scale < math.inf:
        message = f"{path}.scale has to be a number of 0 or more"
        faults.append(Fault("scale", message, column=f"{path}.scale"))
        scale = 1.0
    return Change(
        _selection(select, f"{path}.select", faults),
        _one_of(entry.get("duration", "ideal"), f"{path}.duration", faults),
        float(scale),
    )


def _one_of(value: object, path: str, faults: list[Fault]) -> Base:
    if value in set(Base):
        return Base(str(value))
    faults.append(Fault("choice", f"{path} has to be recorded or ideal", column=path))
    return Base.RECORDED


@dataclass(slots=True)
class _Reader:
    """Reads the lists of a selection, collecting what is wrong with them."""

    document: Mapping[str, Any]
    path: str
    faults: list[Fault] = field(default_factory=list)

    def entries(self, key: str, fits: Callable[[Any], bool], what: str) -> list[Any]:
        values = self.document.get(key, [])
        if isinstance(values, list) and all(fits(value) for value in values):
            return values
        message = f"{self.path}.{key} has to be a list of {what}"
        self.faults.append(Fault("type", message, column=f"{self.path}.{key}"))
        return []


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _selection(document: Mapping[str, Any], path: str, faults: list[Fault]) -> Selection:
    reader = _Reader(document, path, faults)
    known = {"op_types", "steps", "stages", "dp_ranks", "workers"}
    faults += [
        Fault("unknown_key", f"There is no {key!r}", column=f"{path}.{key}")
        for key in sorted(set(map(str, document)) - known)
    ]
    names = reader.entries(
        "op_types", lambda v: isinstance(v, str) and v in TYPE_NAMES, f"{', '.join(TYPE_NAMES)}"
    )
    workers = reader.entries(
        "workers",
        lambda v: isinstance(v, list) and len(v) == 2 and all(map(_is_count, v)),  # noqa: PLR2004
        "[DP rank, stage]",
    )
    return Selection(
        op_types=tuple(name for given in names for name in TYPE_NAMES[given]),
        steps=tuple(reader.entries("steps", _is_count, "steps")),
        stages=tuple(reader.entries("stages", _is_count, "stages")),
        dp_ranks=tuple(reader.entries("dp_ranks", _is_count, "DP ranks")),
        workers=tuple((dp, pp) for dp, pp in workers),
    )


def _check(replayed: Replayed, question: Question) -> None:
    """Refuse what the session does not have."""
    layout = replayed.layout
    steps = set(replayed.steps.tolist())
    faults = []
    for i, change in enumerate(question.changes):
        select, path = change.select, f"changes[{i}].select"
        if select == Selection():
            faults.append(Fault("selects_all", "A change has to select something", column=path))
        absent = [
            *(("steps", f"step {s}") for s in select.steps if s not in steps),
            *(("stages", f"stage {s}") for s in select.stages if s >= layout.pp),
            *(("dp_ranks", f"DP rank {d}") for d in select.dp_ranks if d >= layout.dp),
            *(
                ("workers", f"worker ({dp}, {pp})")
                for dp, pp in select.workers
                if dp >= layout.dp or pp >= layout.pp
            ),
        ]
        faults += [
            Fault("absent", f"The session has no {what}", column=f"{path}.{key}")
            for key, what in absent
        ]
    if faults:
        raise InvalidQuestionError(faults[0].message, faults=tuple(faults[:10]))


def _in_question(group: Group, question: Question) -> Replacement:
    """Return every node's durations in question."""
    durations = group.durations
    masks = [_mask(group, change.select) for change in question.changes]

    def value(base: Base, node: int, steps: slice) -> FloatArray:
        if base is Base.IDEAL:
            return np.asarray(durations.ideal_ns[node])
        return durations.recorded_ns[node, steps]

    def of(node: int, steps: slice) -> FloatArray:
        result = value(question.base, node, steps)
        for change, (nodes, lanes) in zip(question.changes, masks, strict=True):
            if nodes[node]:
                changed = value(change.base, node, steps) * change.scale
                stage = int(group.layout.nodes.pp[node])
                result = np.where(lanes[steps, :, stage], changed, result)
        return result

    nodes = np.arange(len(group.layout.nodes))

    def times(steps: slice) -> FloatArray:
        shape = durations.recorded_ns[0, steps].shape
        return np.stack([np.broadcast_to(of(node, steps), shape) for node in nodes.tolist()])

    return Replacement(nodes, times)


def _mask(group: Group, select: Selection) -> tuple[Sequence[bool], NDArray[np.bool_]]:
    """Return which nodes a selection may hold, and where: shape (steps, dp, pp)."""
    layout = group.layout
    types = layout.codes(*select.op_types) if select.op_types else range(len(layout.op_names))
    nodes = np.isin(layout.nodes.op, np.asarray(list(types)))
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
