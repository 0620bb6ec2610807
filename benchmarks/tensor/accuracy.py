"""Effect of resizing on accuracy: a small vision transformer with a rotating straggler.

As in the paper's training (section V-B), another rank is the straggler in each epoch and leaves a
share γ of its columns out. The images are the handwritten digits of scikit-learn (1,797 of 8 × 8
pixels, from the UCI repository); a quarter of them is the test set.
"""

from __future__ import annotations

import math
import os
import statistics
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional

from benchmarks.tensor.job import RANKS, in_processes
from paceline_client.tensor import (
    Granularity,
    Method,
    Plan,
    RankShare,
    Selection,
    TensorGroup,
    TransformerBlock,
    Workload,
)
from paceline_client.tensor.group import Transport
from paceline_client.tensor.watch import NoWatch

Result = TypeVar("Result")


class Board:
    """Shared memory in which the threads of a group exchange tensors."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.tensors: list[torch.Tensor] = [torch.empty(0)] * size
        self.barrier = threading.Barrier(size)


class _Done:
    """A completed collective."""

    def wait(self) -> None:
        """Do nothing."""


class ThreadedGroup(TensorGroup):
    """A rank's interface to a group of threads, with all-reduce only."""

    def __init__(self, board: Board, rank: int) -> None:
        self._board = board
        self.process_group = None
        self.rank, self.size = rank, board.size
        self.ranks = tuple(range(board.size))
        self.watch = NoWatch()
        self.transport = Transport.SCATTER

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum a tensor over the group, in place; the order of ranks makes all results equal."""
        board = self._board
        board.tensors[self.rank] = tensor
        board.barrier.wait()
        total = torch.stack(board.tensors).sum(0)
        board.barrier.wait()
        return tensor.copy_(total)

    def start_all_reduce(self, tensor: torch.Tensor) -> Any:  # noqa: ANN401 - as torch's work
        """Sum a tensor over the group."""
        self.all_reduce(tensor)
        return _Done()


def on_threads(functions: Sequence[Callable[[], Result]], board: Board) -> list[Result]:
    """Run a function for each rank in a thread and return the results.

    Raises
    ------
    RuntimeError
        If a function failed; its message is on standard error.
    """
    results: dict[int, Result] = {}

    def run(rank: int) -> None:
        try:
            results[rank] = functions[rank]()
        except BaseException:
            board.barrier.abort()
            raise

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(functions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(results) < len(functions):
        raise RuntimeError("a rank did not do its part")
    return [results[rank] for rank in range(len(functions))]


GAMMAS: Final = (0.25, 0.5, 0.875)
SEEDS: Final = 5
EPOCHS: Final = 12
# Student's t, 97.5 %, for five seeds; slightly too large for more seeds.
_STUDENT_T: Final = 2.776
_BATCH: Final = 96
_LEARNING_RATE: Final = 0.003  # the paper's
_HIDDEN: Final = 32
_HEADS: Final = 16
_EXPANDED: Final = 64
_BLOCKS: Final = 2
_PATCH: Final = 2
_SIDE: Final = 8
_CLASSES: Final = 10
_TESTED: Final = 0.25
# Granularity of plans in columns: every γ above is a multiple of it.
_COLUMNS: Final = 16


@dataclass(frozen=True, slots=True)
class Way:
    """A method to leave columns out."""

    name: str
    selection: Selection
    granularity: Granularity


WAYS: Final = (
    Way("Rd", Selection.RANDOM, Granularity.COLUMNS),
    Way("Pri", Selection.PRIORITY, Granularity.COLUMNS),
    Way("PriDiff", Selection.PRIORITY_BY_LAYER, Granularity.COLUMNS),
    Way("hidden units, Pri", Selection.PRIORITY, Granularity.HIDDEN_UNITS),
)


@dataclass(frozen=True, slots=True)
class Change:
    """Difference in test accuracy to the same seed without resizing, percentage points.

    Parameters
    ----------
    mean, deviation : float
        Mean and standard deviation over the seeds.
    """

    way: str
    gamma: float
    mean: float
    deviation: float
    seeds: int

    @property
    def beyond_noise(self) -> bool:
        """Whether zero is outside of the mean's 95 % confidence interval."""
        return abs(self.mean) > _STUDENT_T * self.deviation / math.sqrt(self.seeds)


class _Classifier(nn.Module):  # type: ignore[misc]
    def __init__(self, tp: TensorGroup) -> None:
        super().__init__()
        tokens = (_SIDE // _PATCH) ** 2
        self.patches = nn.Linear(_PATCH * _PATCH, _HIDDEN)
        self.places = nn.Parameter(0.02 * torch.randn(tokens, _HIDDEN))
        self.blocks = nn.Sequential(
            *(TransformerBlock(_HIDDEN, _HEADS, _EXPANDED, tp) for _ in range(_BLOCKS))
        )
        self.norm = nn.LayerNorm(_HIDDEN)
        self.classes = nn.Linear(_HIDDEN, _CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        split = images.unfold(1, _PATCH, _PATCH).unfold(2, _PATCH, _PATCH)
        x = self.patches(split.reshape(len(images), -1, _PATCH * _PATCH)) + self.places
        result: torch.Tensor = self.classes(self.norm(self.blocks(x)).mean(dim=1))
        return result


@dataclass(frozen=True, slots=True)
class _Data:
    images: torch.Tensor
    labels: torch.Tensor
    tested_images: torch.Tensor
    tested_labels: torch.Tensor


def _data(seed: int) -> _Data:
    digits = load_digits()
    order = np.random.default_rng(seed).permutation(len(digits.target))
    images = torch.tensor(digits.images[order] / 16, dtype=torch.float32)
    labels = torch.tensor(digits.target[order])
    tested = int(_TESTED * len(labels))
    return _Data(images[tested:], labels[tested:], images[:tested], labels[:tested])


def _accuracy(seed: int, way: Way | None, gamma: float) -> float:
    """Return the share of correctly classified test images after training, percent."""
    data, board = _data(seed), Board(RANKS)
    ranks = []
    for rank in range(RANKS):
        # Sequential, because threads share the generator of initial weights.
        torch.manual_seed(seed)
        tp = ThreadedGroup(board, rank)
        ranks.append(partial(_train, _Classifier(tp), tp, data, (seed, way, gamma)))
    return on_threads(ranks, board)[0]


def _train(
    model: _Classifier, tp: TensorGroup, data: _Data, how: tuple[int, Way | None, float]
) -> float:
    seed, way, gamma = how
    optimizer = torch.optim.AdamW(model.parameters(), lr=_LEARNING_RATE)
    workload = Workload(
        model,
        tp,
        optimizer,
        selection=way.selection if way else Selection.RANDOM,
        granularity=way.granularity if way else Granularity.COLUMNS,
        seed=seed,
    )
    shuffled = torch.Generator().manual_seed(seed)
    for epoch in range(EPOCHS):
        if way is not None:
            slow = RankShare(epoch % RANKS, round(gamma * _COLUMNS))
            workload.apply(Plan(epoch + 1, Method.ZERO, _COLUMNS, RANKS, (slow,)))
        for batch in torch.randperm(len(data.labels), generator=shuffled).split(_BATCH):
            optimizer.zero_grad()
            functional.cross_entropy(model(data.images[batch]), data.labels[batch]).backward()
            optimizer.step()
        workload.end_epoch()
    workload.close()
    with torch.no_grad():
        predicted = model(data.tested_images).argmax(dim=1)
    return 100 * float((predicted == data.tested_labels).double().mean())


def measure(seeds: int) -> tuple[float, list[Change]]:
    """Return the mean accuracy without resizing, percent, and the change of every method."""
    ways: list[tuple[Way | None, float]] = [(None, 0.0)]
    ways += [(way, gamma) for way in WAYS for gamma in GAMMAS]
    trainings = [(seed, way, gamma) for seed in range(seeds) for way, gamma in ways]
    workers = os.cpu_count() or 1
    shared = [trainings[first::workers] for first in range(workers)]
    accuracies: dict[tuple[int, Way | None, float], float] = {}
    for part in in_processes([partial(_trained, runs) for runs in shared]):
        accuracies |= part
    without = [accuracies[seed, None, 0.0] for seed in range(seeds)]
    changes: list[Change] = []
    for way, gamma in ways[1:]:
        of_seeds = [accuracies[seed, way, gamma] - without[seed] for seed in range(seeds)]
        mean, deviation = statistics.mean(of_seeds), statistics.stdev(of_seeds)
        changes.append(Change(way.name if way else "", gamma, mean, deviation, seeds))
    return statistics.mean(without), changes


def _trained(
    trainings: Sequence[tuple[int, Way | None, float]],
) -> dict[tuple[int, Way | None, float], float]:
    return {training: _accuracy(*training) for training in trainings}


def _cell(change: Change | None) -> str:
    if change is None:
        return "not measured"
    noise = "" if change.beyond_noise else " (noise)"
    return f"{change.mean:+.2f} ± {change.deviation:.2f}{noise}"


def table(changes: Sequence[Change]) -> Iterator[str]:
    """Return the changes as a Markdown table: a row for each method, a column for each γ."""
    yield f"| selection | {' | '.join(f'γ = {gamma:g}' for gamma in GAMMAS)} |"
    yield f"| --- | {' | '.join('---' for _ in GAMMAS)} |"
    for way in WAYS:
        by_gamma = {change.gamma: change for change in changes if change.way == way.name}
        cells = [_cell(by_gamma.get(gamma)) for gamma in GAMMAS]
        yield f"| {way.name} | {' | '.join(cells)} |"
