"""Why a replay is far from its recording, as far as the recording shows it, and what would help."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.replay.adaptations.draft import Draft, Recording
from app.analysis.replay.adaptations.evidence import Name
from app.analysis.replay.adaptations.late_ends import end_with_receives
from app.analysis.replay.adaptations.nested_collectives import find_nested
from app.analysis.replay.adaptations.signs.sampling import sampled
from app.analysis.replay.adaptations.trial import LEAST_GAIN, discrepancy
from app.analysis.replay.clocks.agreement import clocks_apart_ns
from app.analysis.replay.launched import launch_delays
from app.analysis.replay.layout.graph import COMPUTE
from app.analysis.replay.session import Replayed, ShapeGroup

# Clocks disagree when they are apart by this share of a step.
CLOCKS: Final = 0.01
# What explains this share of the mismatch is likeliest.
_MOSTLY: Final = 0.5
# Ends of a type of sends are taken late when that share of them is.
_MANY: Final = 0.5
# A launch is late from here on, in ns and as a share of a computation, and regularly so in this
# share of the cases: hosts that are late by chance are late anywhere.
_LATE_NS: Final = 1e6
_LATE_SHARE: Final = 0.03
_REGULARLY: Final = 0.8
# It comes at the end of what holds it up, by no more than this, in ns and as a share of a
# computation, and not before it but for clock noise.
_AT_ONCE_NS: Final = 1.5e6
_AT_ONCE_SHARE: Final = 0.03
_BEFORE_NS: Final = 0.3e6
# Steps that are looked at.
_STEPS: Final = 64
_NAMED: Final = 3

CLOCKS_DISAGREE: Final = (
    "Likeliest: clocks disagree, ends that belong together are up to {ms:.1f} ms apart; "
    "synchronize the hosts."
)
STEPS_OVERLAP: Final = (
    "Likeliest: steps overlap, and not all of them are comparable; record consecutive steps of one "
    "shape with absolute times."
)
ENDS_AT_WAIT: Final = (
    "Likeliest: ends of transfers are taken when the job waits for them; take them when the "
    "transfer is done."
)
COLLECTIVES_INSIDE: Final = (
    "Likeliest: computations wait inside for collectives; record all of these, with their own "
    "start and end."
)
FALSE_DEPENDENCY: Final = (
    "Likeliest: kernels wait for others that they do not need, {where} always for the end of "
    "{behind}; keep them apart (a larger CUDA_DEVICE_MAX_CONNECTIONS), or record what they do wait "
    "for."
)
HELD_UP: Final = (
    "Likeliest: something that is not recorded holds up the same launches in every step ({where}); "
    "record what runs before them, with its own start and end."
)
POSTED_LATE: Final = (
    "Likeliest: the job posts transfers later than it could, in every step alike ({where}); record "
    "what its hosts wait for before that."
)
HOST_NOISE: Final = (
    "Likeliest: host noise, launches come late by chance; leave the hosts to the job, or record "
    "what runs between its operations."
)


def likeliest_mismatch(
    replayed: Replayed,
    late_types: Sequence[str],
    late_share: float,
    gap: float,
    explained: str | None = None,
) -> str | None:
    """Name the likeliest cause of a mismatch and what to change in the recording.

    Parameters
    ----------
    replayed : Replayed
        Its steps of the most frequent shape are looked at.
    late_types : sequence of str
        The op types whose late launches cost most.
    late_share : float
        What they add to a step, as a share of it.
    gap : float
        Recorded over simulated step time, less 1.
    explained : str, optional
        What to say where nothing is wrong with recorded times: why launches come late.

    Returns
    -------
    str or None
        None where the recording shows none of these.
    """
    elsewhere = recorded_otherwise(replayed, gap) or explained
    if elsewhere is not None:
        return elsewhere
    group = replayed.main
    if find_nested(sampled(group.layout)) is not None:
        return COLLECTIVES_INSIDE
    if gap > 0 and late_share >= _MOSTLY * gap:
        return _held_up(group, late_types) or HOST_NOISE
    nested = any(item.name is Name.NESTED_COLLECTIVES for item in replayed.adaptations)
    return COLLECTIVES_INSIDE if nested else None


def recorded_otherwise(replayed: Replayed, gap: float) -> str | None:
    """Say what is wrong with recorded times, so that launches seem late that are not.

    None where nothing is. `gap` is recorded over simulated step time, less 1.
    """
    group = replayed.main
    if _ends_at_wait(group):
        return ENDS_AT_WAIT
    apart_ns = 0.0 if replayed.one_clock else clocks_apart_ns(group.layout, group.graph)
    if apart_ns > CLOCKS * _step_ns(group):
        return CLOCKS_DISAGREE.format(ms=apart_ns * 1e-6)
    return STEPS_OVERLAP if _steps_overlap(replayed, gap) else None


def _step_ns(group: ShapeGroup) -> float:
    layout = group.layout
    return float((layout.start_ns + layout.duration_ns).max(axis=(0, 2)).mean())


def _ends_at_wait(group: ShapeGroup) -> bool:
    """Return whether sends end late that need not, so that without it the replay is nearer."""
    layout, graph = group.layout, group.graph
    found = end_with_receives(layout, graph, _MANY)
    if found is None:
        return False
    draft = Draft.of([found[0]], [graph], Recording(absolute=False))
    before, after = discrepancy([layout], [graph]), discrepancy(draft.layouts, [graph])
    return before - after >= LEAST_GAIN


def _steps_overlap(replayed: Replayed, gap: float) -> bool:
    """Return whether steps begin so long before the one before has ended that it may be the cause.

    Where they can be chained, whether the replay is nearer then.
    """
    layout, graph = replayed.layout, replayed.graph
    absolute = replayed.clocks.drift_ppm is not None
    next_to = np.diff(layout.steps) == 1
    if graph.chained or not absolute or not next_to.any():
        return False
    period = np.diff(layout.begin_ns)
    overlap = (layout.start_ns + layout.duration_ns).max(axis=(0, 2))[:-1] - period
    least = max(LEAST_GAIN, _MOSTLY * gap) * np.median(period[next_to])
    if np.median(overlap[next_to]) < least:
        return False
    if len(replayed.groups) > 1 or not next_to.all():
        return True
    chained = replace(graph, chained=True)
    gain = discrepancy([layout], [graph]) - discrepancy([layout], [chained])
    return gain >= LEAST_GAIN


def _held_up(group: ShapeGroup, types: Sequence[str]) -> str | None:
    """Say what holds up launches that come late in nearly all steps; None where chance does."""
    layout = group.layout
    delays, _ = launch_delays(group, slice(0, _STEPS))
    typical_ns = float(np.median(layout.duration_ns[layout.of_types(*COMPUTE)]))
    least = max(_LATE_NS, _LATE_SHARE * typical_ns)
    of_types = layout.of_types(*types)
    late = (delays > least) & of_types[:, None, None]
    held = np.flatnonzero(late.mean(axis=(1, 2)) >= _REGULARLY)
    costs = np.where(late, delays, 0.0).sum(axis=(1, 2))
    if costs[held].sum() < _MOSTLY * costs.sum() or not len(held):
        return None
    where = _places(group, held)
    computes = layout.of_types(*COMPUTE)
    if not computes[held].all():
        return POSTED_LATE.format(where=where)
    within = max(_AT_ONCE_NS, _AT_ONCE_SHARE * typical_ns)
    behind = _behind(group, held, late[held], within)
    if behind is None:
        return HELD_UP.format(where=where)
    return FALSE_DEPENDENCY.format(where=where, behind=behind)


def _behind(
    group: ShapeGroup, held: NDArray[np.int64], late: NDArray[np.bool_], within_ns: float
) -> str | None:
    """Return the type of operations of their rank at whose end late computations begin.

    Parameters
    ----------
    held : int64 array, shape (held,)
    late : bool array, shape (held, some steps, dp)
        Where they are late.
    """
    layout = group.layout
    steps = slice(0, late.shape[1])
    ends = layout.start_ns[:, steps] + layout.duration_ns[:, steps]
    others = ~layout.of_types(*COMPUTE)
    met: Counter[str] = Counter()
    for node, when in zip(held.tolist(), late, strict=True):
        parallel = np.flatnonzero(others & (layout.nodes.pp == layout.nodes.pp[node]))
        after = layout.start_ns[node, steps] - ends[parallel]
        near = (after > -_BEFORE_NS) & (after < within_ns) & when
        for code in np.unique(layout.nodes.op[parallel]).tolist():
            of_type = near[layout.nodes.op[parallel] == code]
            met[layout.op_names[code]] += int(of_type.any(axis=0).sum())
    if not met:
        return None
    name, count = met.most_common(1)[0]
    return name if count >= _REGULARLY * late.sum() else None


def _places(group: ShapeGroup, nodes: NDArray[np.int64]) -> str:
    """Name the types and stages of some nodes, the most frequent first."""
    layout = group.layout
    kinds = Counter(
        f"{layout.op_names[layout.nodes.op[node]]} on stage {layout.nodes.pp[node]}"
        for node in nodes.tolist()
    )
    named = ", ".join(name for name, _ in kinds.most_common(_NAMED))
    return named + (" and others" if len(kinds) > _NAMED else "")
