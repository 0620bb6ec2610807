"""What a job calls its own ranges, told by patterns: ``attn(F)`` is a forward computation.

A pattern is a regular expression of RE2, which matches in time linear in the text whatever the
expression is, and takes bounded memory (https://github.com/google/re2/wiki/WhyRE2): one that an
engine with backtracking would never finish cannot be written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NoReturn, Protocol

from app.analysis.trace.faults import refuse
from app.analysis.trace.model import ABSENT
from app.analysis.trace.recordings.labels import Label, kind_of
from app.analysis.trace.unmapped import Unmapped
from app.errors import Fault

# What a pattern may capture, by the names of its groups.
GROUPS: Final = ("mb", "mc", "stage", "step")
# The operation type of ranges that are whole steps.
STEP: Final = "step"
MAX_PATTERN_CHARS: Final = 1000
_MAX_MEMORY_BYTES: Final = 1 << 20
# A range's name; what is longer matches nothing.
_MAX_NAME_CHARS: Final = 4096
_MAX_DIGITS: Final = 15
# Names that are remembered: a name with a number in it is another one each time.
_MAX_REMEMBERED: Final = 1 << 14
# Names without a pattern that are counted, and those that a refusal names.
_MAX_UNKNOWN: Final = 1000
_NAMED: Final = 5


class Match(Protocol):
    """A name that a pattern matched."""

    def groupdict(self) -> Mapping[str, str | None]:
        """Return what its named groups captured."""


class Pattern(Protocol):
    """A compiled pattern."""

    @property
    def groupindex(self) -> Mapping[str, int]:
        """Return its named groups."""

    def fullmatch(self, text: str) -> Match | None:
        """Return the match of a whole text, None where there is none."""


class BadPatternError(Exception):
    """A pattern cannot be used; the message says why."""


@dataclass(frozen=True, slots=True)
class RangeRule:
    """A pattern of ranges' names, and what those ranges are."""

    pattern: str
    op: str  # an operation type, or `STEP`
    line: int | None = None  # where it was written, 1-based

    def __str__(self) -> str:
        where = "" if self.line is None else f" (line {self.line})"
        return f"{self.pattern!r}{where}"


@dataclass(frozen=True, slots=True)
class OwnRange:
    """What a range is whose name a pattern matches."""

    label: Label | None  # None where it is a whole step
    step: int | None  # of the training, where the name says it


class OwnRanges:
    """Rules for the names of ranges of one job; of several that match the first one counts.

    Parameters
    ----------
    rules : sequence of RangeRule

    Raises
    ------
    BadPatternError
        A pattern is no expression of RE2, or has a group of another name than `GROUPS`.
    """

    def __init__(self, rules: Sequence[RangeRule]) -> None:
        self.rules = tuple(rules)
        self._compiled = [compile_pattern(rule.pattern) for rule in rules]

    def reader(self) -> OwnRangesReader:
        """Return what finds ranges of one recording."""
        return OwnRangesReader(self.rules, self._compiled)


class OwnRangesReader:
    """Finds the ranges of one recording, and keeps what was found."""

    def __init__(self, rules: Sequence[RangeRule], compiled: Sequence[Pattern]) -> None:
        self._rules = rules
        self._compiled = compiled
        self._remembered: dict[str, tuple[int, OwnRange] | None] = {}
        self._matched: set[int] = set()
        self._unknown: Counter[str] = Counter()

    def find(self, name: str, event: int) -> OwnRange | None:
        """Return what a range is, None where no pattern matches its name.

        Parameters
        ----------
        event : int
            0-based place in the recording, for refusals.

        Raises
        ------
        InvalidTraceError
            `trace.bad_label`: a group captures what is no number.
        """
        if name not in self._remembered:
            if len(self._remembered) >= _MAX_REMEMBERED:
                self._remembered.clear()
            self._remembered[name] = self._match(name, event)
        found = self._remembered[name]
        if found is None:
            return None
        self._matched.add(found[0])
        return found[1]

    def miss(self, name: str) -> None:
        """Count a range of the job's own that no pattern matches."""
        if name in self._unknown or len(self._unknown) < _MAX_UNKNOWN:
            self._unknown[name] += 1

    def refuse_all(self) -> NoReturn:
        """Refuse a recording of which no pattern matches any range.

        Raises
        ------
        InvalidTraceError
            `trace.no_labels`, with the names of ranges that there are.
        """
        names = ", ".join(
            f"{name[:60]!r} ({count} times)" for name, count in self._unknown.most_common(_NAMED)
        )
        there = f"its ranges are {names}" if names else "it has no ranges of that kind"
        patterns = ", ".join(map(str, self._rules[:_NAMED]))
        message = f"no range matches a pattern of the labels, {patterns}; {there}"
        refuse([Fault("no_labels", message)])

    def unmapped(self) -> list[Unmapped]:
        """Return which patterns matched nothing."""
        return [
            Unmapped(f"files without a range that matches the label {rule}"[:300], 1, _REMEDY)
            for number, rule in enumerate(self._rules)
            if number not in self._matched
        ]

    def _match(self, name: str, event: int) -> tuple[int, OwnRange] | None:
        if len(name) > _MAX_NAME_CHARS:
            return None
        # RE2 reads UTF-8, which has no form of a lone surrogate.
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
    """Return a pattern's automaton.

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
        said = error.args[0]
        text = said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)
        raise BadPatternError(f"no regular expression of RE2: {text}") from error
    for group in compiled.groupindex:
        if group not in GROUPS:
            message = f"there is no group {group!r}; those that are read are {', '.join(GROUPS)}"
            raise BadPatternError(message)
    return compiled
