"""Whether files can be of one job: of which ranks they are, and where these stand."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from app.analysis.trace.merge import TraceChunk
from app.analysis.trace.model import Sizes
from app.errors import Fault, UnanalyzableError


def check_cells(chunks: Sequence[TraceChunk], sizes: Sizes) -> None:
    """Refuse files of more ranks at one place than the sizes have there.

    Each file says for itself where its rank stands; of two jobs, or where the process groups of a
    file are wrong, two ranks claim one place.

    Raises
    ------
    UnanalyzableError
        ``trace.place_taken``, with both files.
    """
    most = sizes.tp * sizes.cp
    known: dict[tuple[int, int], dict[int, str]] = {}
    for chunk in chunks:
        trace = chunk.trace
        for place in np.unique(trace.rank, return_index=True)[1].tolist():
            cell = int(trace.dp[place]), int(trace.pp[place])
            ranks = known.setdefault(cell, {})
            ranks.setdefault(int(trace.rank[place]), chunk.producer)
            if len(ranks) > most:
                _refuse_place(cell, ranks, most)


def _refuse_place(cell: tuple[int, int], ranks: dict[int, str], most: int) -> None:
    (one, its_file), *_, (other, others_file) = ranks.items()
    message = (
        f"{its_file} (rank {one}) and {others_file} (rank {other}) both stand at DP rank "
        f"{cell[0]}, stage {cell[1]}, where the sizes of the job have {most}: the files are of "
        "two jobs, or the process groups in one of them are wrong"
    )
    raise UnanalyzableError(
        message, code="trace.place_taken", faults=(Fault("place_taken", message),)
    )


def check_ranks(chunks: Sequence[TraceChunk]) -> None:
    """Refuse files that are two recordings of one rank, of the same step.

    Parameters
    ----------
    chunks : sequence of TraceChunk
        Of which some are known to have the same operations at different times.

    Raises
    ------
    UnanalyzableError
        ``trace.rank_twice``, with both files.
    """
    steps = [_steps_of_ranks(chunk) for chunk in chunks]
    for (chunk, its_steps), (other, others_steps) in combinations(
        zip(chunks, steps, strict=True), 2
    ):
        shared = its_steps & others_steps
        if not shared:
            continue
        rank, step = min(shared)
        message = (
            f"{chunk.producer} and {other.producer} are two recordings of rank {rank}, which "
            f"differ in step {step}: leave one of them out"
        )
        raise UnanalyzableError(
            message, code="trace.rank_twice", faults=(Fault("rank_twice", message),)
        )


def _steps_of_ranks(chunk: TraceChunk) -> set[tuple[int, int]]:
    pairs = np.unique(np.stack([chunk.trace.rank, chunk.trace.step]), axis=1)
    return {(int(rank), int(step)) for rank, step in pairs.T}
