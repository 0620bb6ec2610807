"""Places of a cause in a job, views that show its evidence, and names of workers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Literal, TypeAlias

from app.analysis.json_text import OMITTED, json_name
from app.analysis.trace.rank_metadata import node_label
from app.analysis.wording import name_list

# A worker: (DP rank, pipeline stage).
Worker: TypeAlias = tuple[int, int]

# The reader of stored documents derives keys from field names in the same way as the writer.
KEYS: Final[dict[str, Any]] = {"alias_generator": json_name}


@dataclass(frozen=True, slots=True)
class SlowSpells:
    """Slow steps of the slowest worker or of the network; absent if nearly all are slow."""

    steps: int
    """Number of slow steps."""
    of: int
    """Number of compared steps."""
    times: float
    """Slowness in the slow steps: the worker's time ÷ that of its stage's peers, or the network's
    transfer time ÷ that in quiet steps.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """The places of a cause; a place that does not apply has no key."""

    links: tuple[tuple[int, int, int], ...] | None = field(default=None, metadata=OMITTED)
    """Slow links, each between two stages of one DP rank: (DP rank, stage, stage)."""
    workers: tuple[Worker, ...] = field(default=(), metadata=OMITTED)
    """Workers at fault, the worst first: (DP rank, stage)."""
    stage: int | None = field(default=None, metadata=OMITTED)
    """Pipeline stage at fault."""
    stages: tuple[int, ...] = field(default=(), metadata=OMITTED)
    """Pipeline stages on which the cause shows."""
    ranks: tuple[int, ...] = field(default=(), metadata=OMITTED)
    """Global ranks at fault, one for each worker of `workers`."""
    spells: SlowSpells | None = field(default=None, metadata=OMITTED)
    """Slow steps of the first worker of `workers`, or of the whole network; None if nearly all
    steps are slow.
    """
    dp: int | None = field(default=None, metadata=OMITTED)
    """DP rank at fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerView:
    """A view: the line of a worker in the table of workers."""

    view: Literal["worker"] = "worker"
    dp: int
    """DP rank of the worker."""
    pp: int
    """Pipeline stage of the worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageView:
    """A view: the row of a stage in the map of workers."""

    view: Literal["stage"] = "stage"
    pp: int
    """Number of the pipeline stage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepView:
    """A view: the timeline of a training step."""

    view: Literal["step"] = "step"
    step: int
    """Number of the training step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkView:
    """A view: a link in the figure of the cause."""

    __pydantic_config__: ClassVar = KEYS

    view: Literal["link"] = "link"
    dp: int
    """DP rank of the link."""
    from_: int
    """Stage at one end of the link."""
    to: int
    """Stage at the other end of the link."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureView:
    """A view: the figure of the cause, or a part of it."""

    view: Literal["figure"] = "figure"
    part: str = field(default="", metadata=OMITTED)
    """Part of the figure: ``workers``, ``ranks``, ``spread`` or ``squares``; no key if the figure
    has a single part.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionView:
    """A view: a whole region of the page."""

    view: Literal["map", "scatter"]
    """Region of the page: the map of workers, or the plot of forward against backward times."""


View: TypeAlias = WorkerView | StageView | StepView | LinkView | FigureView | RegionView


# Longest GPU name in a sentence: the serial number of a GPU is too long.
SHORT_NAME: Final = 8


@dataclass(frozen=True, slots=True, eq=False)
class Hosts:
    """Hosts and GPUs of the workers and ranks, and how sentences name them."""

    hosts: Mapping[int, str]  # by global rank, as far as known
    ranks: Sequence[Sequence[int]]  # the traced rank of each worker, [dp][pp]
    gpus: Mapping[int, str] = field(default_factory=dict)  # by global rank, as far as known
    gpus_of_worker: int = 1  # its tensor- and context-parallel ranks
    guessed: Collection[str] = ()  # hosts whose names are guesses

    def host(self, worker: Worker) -> str | None:
        """Return the host of a worker; None if unknown."""
        dp, pp = worker
        return self.hosts.get(self.ranks[dp][pp])

    def whole_host(self, workers: Collection[Worker]) -> str | None:
        """Name the host whose workers are exactly these workers; None without such a host.

        None also if the job has a single host, as the workers of this host are the whole job.

        Examples
        --------
        >>> hosts = Hosts({0: "node-6", 1: "node-7", 2: "node-6", 3: "node-7"}, [[0, 1], [2, 3]])
        >>> hosts.whole_host([(0, 1), (1, 1)])
        'node-7'
        >>> hosts.whole_host([(0, 1)]) is None
        True
        """
        hosts = {self.host(worker) for worker in workers}
        if len(hosts) != 1:
            return None
        host = hosts.pop()
        all_hosts = [self.hosts.get(rank) for row in self.ranks for rank in row]
        if host is None or not all_hosts.count(host) == len(set(workers)) < len(all_hosts):
            return None
        return node_label(host, guessed=host in self.guessed)

    def on(self, rank: int) -> str:
        """Return " on " with a rank's host and GPU (unless the name is long); empty if unknown."""
        host, gpu = self.hosts.get(rank), self.gpus.get(rank, "")
        if not host:
            return ""
        name = f"GPU {gpu}" if gpu.isdecimal() else gpu
        host = node_label(host, guessed=host in self.guessed)
        return f" on {host} {name}" if 0 < len(name) <= SHORT_NAME else f" on {host}"

    def subject(self, worker: Worker) -> str:
        """Name a worker at the beginning of a sentence: ``Worker (0, 1) on node-7``."""
        return f"W{self.name_workers(worker)[1:]}"

    def name_workers(self, *workers: Worker) -> str:
        """Name a worker with its host, if known; or name several workers.

        Examples
        --------
        >>> hosts = Hosts({1: "node-7"}, [[0, 1], [2, 3]])
        >>> hosts.name_workers((0, 1))
        'worker (0, 1) on node-7'
        >>> hosts.name_workers((0, 1), (1, 0))
        'workers (0, 1), (1, 0)'
        """
        text = name_list("worker", [f"({dp}, {pp})" for dp, pp in workers])
        if len(workers) > 1:
            return text
        ((dp, pp),) = workers
        if self.gpus_of_worker == 1:
            return text + self.on(self.ranks[dp][pp])
        # The GPU at fault is one of the worker's GPUs, but unknown, so only the host is named.
        host = self.host((dp, pp))
        return f"{text} on {node_label(host, guessed=host in self.guessed)}" if host else text


@dataclass(frozen=True, slots=True, eq=False)
class JobFacts(Hosts):
    """Facts of a job that sentences about its causes mention."""

    # Slowdown if only operations of this type kept their recorded durations, by type.
    by_optype: Mapping[str, float] = field(kw_only=True)
    # Workers that recorded nothing.
    absent: tuple[Worker, ...] = field(default=(), kw_only=True)

    @property
    def last_stage(self) -> int:
        """Return the number of the last pipeline stage."""
        return len(self.ranks[0]) - 1

    def has_peers(self, stage: int) -> bool:
        """Return whether several DP ranks of any stage recorded operations."""
        return len(self.ranks) - sum(pp == stage for _, pp in self.absent) > 1
