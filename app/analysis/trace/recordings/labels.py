"""Labels: names of recorded ranges that identify the operation.

PyTorch's pipeline runtime labels each action (``torch.distributed.pipelining.schedules``):
``PP:2F0`` is the forward of microbatch 0 through stage 2, ``B`` a whole backward, ``I`` and ``W``
its halves. A hand-written loop labels its own ranges as ``paceline:fwd:mb=3:mc=0``, with ``fwd``,
``bwd``, ``wgrad`` or the name of an operation type, or matches names like ``attn(F)`` by patterns
of RE2: they match in linear time and bounded memory whatever the pattern is
(https://github.com/google/re2/wiki/WhyRE2). Several ranges of one computation are joined.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, NoReturn, Protocol

from app.analysis.trace.limits import refuse
from app.analysis.trace.metadata import Unmapped
from app.analysis.trace.model import (
    ABSENT,
    BACKWARD_COMPUTE,
    BACKWARD_RECV,
    BACKWARD_SEND,
    BETWEEN_STEPS,
    DATA_LOADING,
    FORWARD_COMPUTE,
    FORWARD_RECV,
    FORWARD_SEND,
    GRADS_REDUCE_SCATTER,
    PARAMS_ALL_GATHER,
    REPLAYED_OP_TYPES,
    WGRAD_COMPUTE,
)
from app.errors import Fault


class LabelKind(Enum):
    """Kind of work in a labelled range."""

    COMPUTE = auto()
    TRANSFER = auto()
    COLLECTIVE = auto()


@dataclass(frozen=True, slots=True)
class Label:
    """Operation that the name of a range identifies."""

    op: str  # our operation type
    kind: LabelKind
    stage: int = ABSENT  # in the whole pipeline; `ABSENT` if the label has a chunk
    # mb, mc: microbatch; model chunk, `ABSENT` if it follows from the stage
    mb: int = ABSENT
    mc: int = ABSENT
    # Whether the label comes from a pattern of the job. Several such ranges may be parts of one
    # computation.
    own: bool = False


_ACTIONS: Final[Mapping[str, tuple[str, LabelKind]]] = {
    "F": (FORWARD_COMPUTE, LabelKind.COMPUTE),
    "B": (BACKWARD_COMPUTE, LabelKind.COMPUTE),
    "I": (BACKWARD_COMPUTE, LabelKind.COMPUTE),
    "W": (WGRAD_COMPUTE, LabelKind.COMPUTE),
    "SEND_F": (FORWARD_SEND, LabelKind.TRANSFER),
    "RECV_F": (FORWARD_RECV, LabelKind.TRANSFER),
    "SEND_B": (BACKWARD_SEND, LabelKind.TRANSFER),
    "RECV_B": (BACKWARD_RECV, LabelKind.TRANSFER),
    "UNSHARD": (PARAMS_ALL_GATHER, LabelKind.COLLECTIVE),
    "REDUCE_GRAD": (GRADS_REDUCE_SCATTER, LabelKind.COLLECTIVE),
}
SHORT_NAMES: Final = {"fwd": FORWARD_COMPUTE, "bwd": BACKWARD_COMPUTE, "wgrad": WGRAD_COMPUTE}
_TRANSFERS: Final = (FORWARD_SEND, FORWARD_RECV, BACKWARD_SEND, BACKWARD_RECV)
_COLLECTIVES: Final = ("gather", "scatter", "reduce", "all-to-all", "send-recv")

TORCH_PREFIX: Final = "PP:"
# Prefix of the range in which PyTorch's data loader fetches the next batch.
LOADER_PREFIX: Final = "enumerate(DataLoader)#"
OWN_PREFIX: Final = "paceline:"
_ACTION: Final = re.compile(
    r"PP:([0-9]{1,7})(SEND_F|RECV_F|SEND_B|RECV_B|UNSHARD|REDUCE_GRAD|F|B|I|W)([0-9]{1,7})?"
)
# Label of an action that runs a forward and a backward together, as in `ScheduleDualPipeV`.
_OVERLAPPED: Final = re.compile(r"PP:\(([^();]{1,32});([^();]{1,32})\)OVERLAP_F_B")
# Labels of PyTorch's pipeline runtime that mark no operation: resharding, and second names of
# communications.
NO_OPERATION: Final = re.compile(r"PP:[0-9]+RESHARD|PP::.*")
_OWN: Final = re.compile(r"paceline:([a-z-]{1,64})((?::(?:mb|mc)=[0-9]{1,7})*)")
_STEP: Final = re.compile(r"(?:ProfilerStep#|paceline:step[=:])([0-9]{1,16})")


def parse_label(text: str) -> Label | None:
    """Return the label in a range's name; None if the name identifies no operation.

    Examples
    --------
    >>> parse_label("PP:2SEND_F3").op
    'forward-send'
    >>> parse_label("paceline:fwd:mb=3:mc=0").mb
    3
    >>> parse_label("aten::mm") is None
    True
    """
    action = _ACTION.fullmatch(text)
    if action is not None:
        op, kind = _ACTIONS[action[2]]
        mb = ABSENT if action[3] is None else int(action[3])
        return Label(op, kind, stage=int(action[1]), mb=mb)
    own = _OWN.fullmatch(text)
    if own is None:
        return None
    op = SHORT_NAMES.get(own[1], own[1])
    if op not in REPLAYED_OP_TYPES:
        return None
    numbers = dict(part.split("=") for part in own[2].split(":") if part)
    return Label(
        op,
        kind_of(op),
        mb=int(numbers.get("mb", ABSENT)),
        mc=int(numbers.get("mc", ABSENT)),
    )


def parse_overlapped(text: str) -> tuple[Label, Label] | None:
    """Return the forward and backward of an action that overlaps both; None for other names.

    Examples
    --------
    >>> [half.op for half in parse_overlapped("PP:(0F1;3B0)OVERLAP_F_B")]
    ['forward-compute', 'backward-compute']
    """
    both = _OVERLAPPED.fullmatch(text)
    if both is None:
        return None
    forward, backward = (parse_label(f"{TORCH_PREFIX}{half}") for half in both.groups())
    if forward is None or backward is None:
        return None
    fits = forward.op == FORWARD_COMPUTE and backward.op == BACKWARD_COMPUTE
    return (forward, backward) if fits else None


def parse_between(text: str) -> str | None:
    """Return the operation type of a range of work between steps; None for other names.

    Examples
    --------
    >>> parse_between("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__")
    'data-loading'
    >>> parse_between("paceline:data-loading")
    'data-loading'
    """
    if text.startswith(LOADER_PREFIX):
        return DATA_LOADING
    name = text.removeprefix(OWN_PREFIX)
    return name if name != text and name in BETWEEN_STEPS else None


def parse_step(text: str) -> int | None:
    """Return the step number in a range's name (``ProfilerStep#12``); None if it has none."""
    step = _STEP.fullmatch(text)
    return None if step is None else int(step[1])


def kind_of(op: str) -> LabelKind:
    """Return the kind of work of an operation type."""
    if op in _TRANSFERS:
        return LabelKind.TRANSFER
    computes = op.endswith("compute") or not op.endswith(_COLLECTIVES)
    return LabelKind.COMPUTE if computes else LabelKind.COLLECTIVE


_JOINED: Final = frozenset({FORWARD_COMPUTE, BACKWARD_COMPUTE, WGRAD_COMPUTE})
_Key = tuple[int | None, str, int, int, int]


def join_ranges(labels: Sequence[Label], steps: Sequence[int | None]) -> dict[int, list[int]]:
    """Return the indices of each computation's ranges by the index of its first range.

    A job that labels its layers (``attn(F)``, ``mlp(F)``) has many ranges for one forward. Ranges
    of the same microbatch are joined; ranges without a microbatch are joined until the rank runs
    another computation, a send or a receive. A forward after the start of its microbatch's backward
    is a recomputation, and a part of that backward.

    Parameters
    ----------
    labels : sequence of Label
        Labels of one rank, by start.
    steps : sequence of int or None
        The step of each label.

    Returns
    -------
    parts : dict
        Index of a computation's first range → ascending indices of all its ranges. Computations
        with a single range are included; ranges of communication are not.

    Examples
    --------
    >>> layers = [Label("forward-compute", LabelKind.COMPUTE, mb=mb, own=True) for mb in (0, 1, 0)]
    >>> join_ranges(layers, [7, 7, 7])
    {0: [0, 2], 1: [1]}
    """
    parts: dict[int, list[int]] = {}
    by_microbatch: dict[_Key, int] = {}
    running: tuple[_Key, int] | None = None
    for place, (label, step) in enumerate(zip(labels, steps, strict=True)):
        if label.op not in _JOINED:
            if label.kind is not LabelKind.COLLECTIVE:
                running = None
            continue
        key = (step, label.op, label.stage, label.mb, label.mc)
        first = None
        if label.own and label.mb != ABSENT:
            again = (step, BACKWARD_COMPUTE, label.stage, label.mb, label.mc)
            if label.op == FORWARD_COMPUTE and again in by_microbatch:
                key = again
            first = by_microbatch.setdefault(key, place)
        elif label.own and running is not None and running[0] == key:
            first = running[1]
        first = place if first is None else first
        parts.setdefault(first, []).append(place)
        running = key, first
    return parts


# Names of the capture groups that a pattern may have.
GROUPS: Final = ("mb", "mc", "stage", "step")
# Operation type in a rule for ranges that are whole steps.
STEP: Final = "step"
MAX_PATTERN_CHARS: Final = 1000
_MAX_MEMORY_BYTES: Final = 1 << 20
# Maximum number of characters of a range's name; longer names match no pattern.
_MAX_NAME_CHARS: Final = 4096
_MAX_DIGITS: Final = 15
# Maximum number of entries of the cache of matches by name. Names that contain a counter differ
# each time and would fill memory.
_MAX_REMEMBERED: Final = 1 << 14
# _MAX_UNKNOWN: most distinct names without a matching pattern that are counted; _NAMED: most of
# them that a refusal lists
_MAX_UNKNOWN: Final = 1000
_NAMED: Final = 5


class Match(Protocol):
    """Match of a pattern with a text."""

    def groupdict(self) -> Mapping[str, str | None]:
        """Return the captured text of each named group."""


class Pattern(Protocol):
    """A compiled pattern."""

    @property
    def groupindex(self) -> Mapping[str, int]:
        """Return the index of each named capture group."""

    def fullmatch(self, text: str) -> Match | None:
        """Return the match of the pattern with the whole text; None if it does not match."""


class BadPatternError(Exception):
    """Raised for a pattern that cannot be used; the message is the reason."""


@dataclass(frozen=True, slots=True)
class RangeRule:
    """Pattern for names of ranges, and the operation type of matching ranges."""

    pattern: str
    op: str  # an operation type, or `STEP`
    line: int | None = None  # 1-based line in the file of rules

    def __str__(self) -> str:
        where = "" if self.line is None else f" (line {self.line})"
        return f"{self.pattern!r}{where}"


@dataclass(frozen=True, slots=True)
class OwnRange:
    """Operation or step of a range whose name matches a pattern of the job."""

    label: Label | None  # None for a whole step
    step: int | None  # training step if the pattern captures it


class OwnRanges:
    """Rules for the names of a job's own ranges; the first matching rule applies.

    Parameters
    ----------
    rules : sequence of RangeRule

    Raises
    ------
    BadPatternError
        A pattern is not an expression of RE2, or has a capture group whose name is not in `GROUPS`.
    """

    def __init__(self, rules: Sequence[RangeRule]) -> None:
        self.rules = tuple(rules)
        self._compiled = [compile_pattern(rule.pattern) for rule in rules]

    def __reduce__(self) -> tuple[type[OwnRanges], tuple[Sequence[RangeRule]]]:
        """Pickle the rules alone, since compiled patterns cannot be pickled."""
        return OwnRanges, (self.rules,)

    def reader(self) -> OwnRangesReader:
        """Return a new matcher for one recording."""
        return OwnRangesReader(self.rules, self._compiled)


class OwnRangesReader:
    """Matcher of the ranges of one recording; it counts matches and misses."""

    def __init__(self, rules: Sequence[RangeRule], compiled: Sequence[Pattern]) -> None:
        self._rules = rules
        self._compiled = compiled
        self._remembered: dict[str, tuple[int, OwnRange] | None] = {}
        self._matched: set[int] = set()
        self._unknown: Counter[str] = Counter()

    def find(self, name: str, event: int) -> OwnRange | None:
        """Return the operation or step of a range; None if no pattern matches its name.

        Parameters
        ----------
        event : int
            0-based place in the recording, for refusals.

        Raises
        ------
        InvalidTraceError
            `trace.bad_label`: a group captures a text that is no number.
        """
        if name not in self._remembered:
            if len(self._remembered) >= _MAX_REMEMBERED:
                self._remembered.clear()
            self._remembered[name] = self._match(name, event)
        match = self._remembered[name]
        if match is None:
            return None
        rule_number, own_range = match
        self._matched.add(rule_number)
        return own_range

    def miss(self, name: str) -> None:
        """Count the name of a range that no pattern matches, for the refusal."""
        if name in self._unknown or len(self._unknown) < _MAX_UNKNOWN:
            self._unknown[name] += 1

    def refuse_all(self) -> NoReturn:
        """Refuse a recording in which no range matches a pattern.

        Raises
        ------
        InvalidTraceError
            `trace.no_labels`, with the most frequent names of its ranges.
        """
        names = ", ".join(
            f"{name[:60]!r} ({count} times)" for name, count in self._unknown.most_common(_NAMED)
        )
        there = f"its ranges are {names}" if names else "it has no ranges of that kind"
        patterns = ", ".join(map(str, self._rules[:_NAMED]))
        message = f"no range matches a pattern of the labels, {patterns}; {there}"
        refuse([Fault("no_labels", message)])

    def unmapped(self) -> list[Unmapped]:
        """Return the patterns that no range matched, as unmapped items."""
        return [
            Unmapped(f"files without a range that matches the label {rule}"[:300], 1, _REMEDY)
            for number, rule in enumerate(self._rules)
            if number not in self._matched
        ]

    def _match(self, name: str, event: int) -> tuple[int, OwnRange] | None:
        if len(name) > _MAX_NAME_CHARS:
            return None
        # RE2 matches UTF-8, which cannot represent a lone surrogate.
        text = name.encode("utf-8", "replace").decode("utf-8")
        for number, (rule, pattern) in enumerate(zip(self._rules, self._compiled, strict=True)):
            match = pattern.fullmatch(text)
            if match is not None:
                return number, _own_range(rule, match.groupdict(), event)
        return None


_REMEDY: Final = "correct the pattern, or record such a range"


def _own_range(rule: RangeRule, captured: Mapping[str, str | None], event: int) -> OwnRange:
    numbers: dict[str, int] = {}
    for group, text in captured.items():
        if text is None:
            continue
        if not (text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS):
            message = (
                f"the pattern {rule} captures {text[:40]!r} of event {event} as {group}, which is "
                "no number"
            )
            refuse([Fault("bad_label", message, row=event)])
        numbers[group] = int(text)
    step = numbers.get("step")
    if rule.op == STEP:
        return OwnRange(None, step)
    label = Label(
        rule.op,
        kind_of(rule.op),
        stage=numbers.get("stage", ABSENT),
        mb=numbers.get("mb", ABSENT),
        mc=numbers.get("mc", ABSENT),
        own=True,
    )
    return OwnRange(label, step)


def compile_pattern(pattern: str) -> Pattern:
    """Return the compiled RE2 pattern of an expression.

    Raises
    ------
    BadPatternError
    """
    if len(pattern) > MAX_PATTERN_CHARS:
        raise BadPatternError(f"over {MAX_PATTERN_CHARS} characters")
    import re2  # noqa: PLC0415 - most recordings have no labels

    options = re2.Options()
    options.max_mem = _MAX_MEMORY_BYTES
    options.log_errors = False
    try:
        compiled: Pattern = re2.compile(pattern, options)
    except UnicodeEncodeError as error:
        raise BadPatternError("it holds half a character") from error
    except re2.error as error:
        reason = error.args[0]
        text = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
        raise BadPatternError(f"no regular expression of RE2: {text}") from error
    for group in compiled.groupindex:
        if group not in GROUPS:
            message = f"there is no group {group!r}; those that are read are {', '.join(GROUPS)}"
            raise BadPatternError(message)
    return compiled
