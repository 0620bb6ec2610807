"""Readers of what `py-spy dump` and `ncclras` print as text, without ``--json`` or ``-f json``.

Formats: `src/dump.rs` of py-spy, `src/ras/client_support.cc` of NCCL. The cost is proportional to
the bytes.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from app.analysis.hangs.state import Frame
from app.errors import InvalidTraceError
from app.hangs.flight_recorder import MOST_FRAMES
from app.hangs.ras import INVALID_RAS, MOST_RANKS, TRANSFERS, Communicator, Member

# Longer lines are cut: none of those read here is as long.
_LONGEST_LINE: Final = 4096
_COLORS: Final = re.compile(r"\x1b\[[0-9;]{0,16}m")


def lines_of(body: bytes) -> Iterator[str]:
    """Yield the lines of a text without colors; a progress bar may precede text by a return."""
    for line in io.BytesIO(body):
        for part in line[-_LONGEST_LINE:].rstrip(b"\r\n").split(b"\r"):
            yield _COLORS.sub("", part.decode(errors="replace"))


_PROCESS: Final = re.compile(
    rb"^[^\n]{0,16}Process[^\n]{1,32}: [^\n]*\n[^\n]{0,16}Python v", re.MULTILINE
)
_PROCESS_LINE: Final = re.compile(r"Process (\d{1,18}): ")
_THREAD_LINE: Final = re.compile(r'Thread (\w{1,32}) \(([\w+ ]{0,32})\)(?:: "(.*)")?$')
_FRAME_LINE: Final = re.compile(r" {4}(\S.{0,1024}) \((.{1,1024}?)(?::(\d{1,9}))?\)$")
_ONE_A_RANK: Final = "py-spy dump --json --pid PID > stack_RANK.json"


def is_py_spy_text(body: bytes) -> bool:
    """Return whether a file is what `py-spy dump` prints without ``--json``."""
    return _PROCESS.search(body) is not None


def stack_in_text(body: bytes) -> tuple[Frame, ...]:
    """Return the stack of the training thread: the main thread, else the one with the lock.

    Raises
    ------
    InvalidTraceError
        ``hang.invalid_stack``: the text is about several processes, whose ranks it does not name.
    """
    threads: list[tuple[bool, bool, list[Frame]]] = []
    processes = 0
    pid = ""
    is_child = False
    for line in lines_of(body):
        if process := _PROCESS_LINE.match(line):
            processes, pid, is_child = processes + 1, process[1], False
        elif line.startswith("Parent Process"):
            # It follows the line of a process that a rank has started, such as a loader's.
            processes, is_child = processes - 1, True
        elif thread := _THREAD_LINE.match(line):
            is_main = thread[3] == "MainThread" or thread[1] == pid
            threads.append((is_main and not is_child, "gil" in thread[2], []))
        elif threads and (frame := _FRAME_LINE.match(line)):
            frames = threads[-1][2]
            if len(frames) < MOST_FRAMES:
                frames.append(Frame(frame[1], frame[2], int(frame[3] or 0)))
    if processes > 1:
        raise InvalidTraceError(
            f"It has the stacks of {processes} processes and names no ranks: write a file for "
            f"each, {_ONE_A_RANK}",
            code="hang.invalid_stack",
        )
    return tuple(max(threads, key=lambda thread: thread[:2])[2]) if threads else ()


_MOST_KINDS: Final = 64
_RAS: Final = re.compile(
    rb"^Communicators\.\.\.|^#\d{1,9}-\d{1,9} \([0-9a-f]{1,16}\) [A-Z]{1,32}\s*$", re.MULTILINE
)
# A row of the table: group, communicators, nodes, ranks of a node, ranks of a communicator, ranks
# in the group.
_GROUP_ROW: Final = re.compile(
    r" *(\d{1,9}) +(\d{1,9}) +\d{1,9} +[\d-]{1,19} +(\d{1,9}) +(\d{1,9}) +[A-Z]+ +[A-Z]+"
)
_SECTION: Final = re.compile(r"#(\d{1,9})-\d{1,9} \(([0-9a-f]{1,16})\) ([A-Z]{1,32})")
_COUNTS: Final = re.compile(r" *Communicator ranks have different (\w{1,64}) operation counts")
_LAUNCHED: Final = r"(?:launched up to operation (\d{1,18})|not launched any operations)"
_SOME: Final = re.compile(rf" *(\d{{1,9}}) ranks have {_LAUNCHED}")
_RANK: Final = re.compile(rf" *Rank (\d{{1,9}})( has {_LAUNCHED})? -- ")
_PROCESS_OF_RANK: Final = re.compile(
    r" -- GPU (.{1,64}?) managed by process (\d{1,18}) on node (\S{1,256})"
)
_NUMBERS: Final = re.compile(r"\d{1,9}")
_NOT_ENOUGH: Final = "ncclras -f json (NCCL 2.28) lists all ranks"


@dataclass
class _Section:
    """What a report of RAS says about a communicator.

    Parameters
    ----------
    listed : dict of str to dict of int to int
        By kind of operation: the number of launched operations by listed rank.
    counted : dict of str to dict of int to int
        By kind of operation: how many ranks have launched each number.
    processes : dict of int to (str, int, int)
        Host, process id and GPU by listed rank.
    """

    name: str
    silent: set[int] = field(default_factory=set)
    listed: dict[str, dict[int, int]] = field(default_factory=dict)
    counted: dict[str, dict[int, int]] = field(default_factory=dict)
    processes: dict[int, tuple[str, int, int]] = field(default_factory=dict)

    def communicator(self, size: int) -> Communicator:
        """Return the communicator; ranks that are not listed have the number of the others.

        Parameters
        ----------
        size : int
            Number of ranks; 0 if the report does not say it.

        Raises
        ------
        InvalidTraceError
            The ranks that are not listed have different numbers.
        """
        answering = max((sum(counted.values()) for counted in self.counted.values()), default=0)
        last = max((*self.silent, *self.processes), default=-1)
        size = max(size, answering + len(self.silent), last + 1)
        if size > MOST_RANKS:
            raise InvalidTraceError(
                f"A communicator has {size} ranks, the most is {MOST_RANKS}", code=INVALID_RAS
            )
        usual: dict[str, int] = {}
        for kind, counted in self.counted.items():
            listed = self.listed.get(kind, {})
            others = counted.keys() - set(listed.values())
            if len(others) > 1 or (not others and len(listed) + len(self.silent) < size):
                raise InvalidTraceError(
                    f"It does not say which ranks have launched which {kind}: {_NOT_ENOUGH}",
                    code=INVALID_RAS,
                )
            usual[kind] = max(others, default=0)
        # Ranks that are not listed share a dictionary: a line may count thousands of them.
        launched: dict[int, dict[str, int] | None] = dict.fromkeys(self.silent)
        for kind, listed in self.listed.items():
            for rank, number in listed.items():
                own = launched.setdefault(rank, dict(usual))
                if own is not None:
                    own[kind] = number
        return Communicator(
            self.name,
            size,
            tuple(
                # A process that is not listed has its rank instead of its id.
                Member(
                    rank, *self.processes.get(rank, ("", -1 - rank, -1)), launched.get(rank, usual)
                )
                for rank in range(size)
            ),
        )


def is_ras_text(body: bytes) -> bool:
    """Return whether a file is what `ncclras` prints without ``-f json``."""
    return _RAS.search(body) is not None


def ras_in_text(body: bytes) -> tuple[Communicator, ...]:
    """Return the communicator of all processes in the text of `ncclras`.

    The text names the ranks that are behind or silent, and only counts the others.

    Raises
    ------
    InvalidTraceError
        ``hang.invalid_ras``: the text does not name enough ranks, or none by its global rank.
    """
    report = _Report()
    for line in lines_of(body):
        report.take(line)
    return report.communicators()


class _Report:
    """A report of RAS, read line by line."""

    def __init__(self) -> None:
        self._largest = 0  # ranks of the largest communicator
        self._sizes: dict[str, int] = {}  # by group whose communicators have all its ranks
        self._sections: dict[tuple[str, str], _Section] = {}  # by group and name
        self._section = _Section("")
        self._kind: str | None = None  # of the counts below; "" if silent ranks are listed below
        self._number = 0

    def take(self, line: str) -> None:
        """Read the next line."""
        if row := _GROUP_ROW.match(line):
            self._largest = max(self._largest, int(row[3]))
            if row[2] == "1" or row[3] == row[4]:
                self._sizes[row[1]] = int(row[3])
        elif head := _SECTION.match(line):
            key, name = (head[1], head[2]), f"0x{head[2]}"
            self._section = self._sections.setdefault(key, _Section(name))
            self._kind = "" if head[3] == "INCOMPLETE" else None
        elif counts := _COUNTS.match(line):
            kinds = self._section.counted
            is_used = TRANSFERS.search(counts[1]) is None and len(kinds) < _MOST_KINDS
            self._kind = counts[1] if is_used else None
        elif self._kind and (some := _SOME.match(line)):
            self._number = int(some[2] or 0)
            self._section.counted.setdefault(self._kind, {})[self._number] = int(some[1])
        elif self._kind is not None and (rank := _RANK.match(line)):
            self._take_rank(self._kind, int(rank[1]), rank, line)
        elif not line.startswith("  "):
            self._kind = None

    def _take_rank(self, kind: str, rank: int, row: re.Match[str], line: str) -> None:
        if not kind:
            self._section.silent.add(rank)
        elif row[2]:
            number = int(row[3] or 0)
            self._section.counted.setdefault(kind, {})[number] = 1
            self._section.listed.setdefault(kind, {})[rank] = number
        else:
            self._section.listed.setdefault(kind, {})[rank] = self._number
        if process := _PROCESS_OF_RANK.search(line):
            # Two numbers are that of CUDA and, in parentheses, that of the machine.
            gpus = _NUMBERS.findall(process[1]) or ["-1"]
            self._section.processes[rank] = process[3], int(process[2]), int(gpus[-1])

    def communicators(self) -> tuple[Communicator, ...]:
        """Return the first communicator of all processes with a problem, else one without."""
        for (group, _), section in self._sections.items():
            size = self._sizes.get(group, 0)
            if size == self._largest and (size or len(self._sections) == 1):
                return (section.communicator(size),)
        if self._sections or not self._largest:
            raise InvalidTraceError(
                f"It does not name ranks of the whole job: {_NOT_ENOUGH}", code=INVALID_RAS
            )
        return (_Section("0x0").communicator(self._largest),)
