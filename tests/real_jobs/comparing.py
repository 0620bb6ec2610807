"""Recordings by the client's hooks, compared with the workers' own: the same jobs and faults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.real_jobs.judging import HEADLINE_WITHIN, Judged, columns, off


@dataclass(frozen=True, slots=True)
class Pair:
    """A scenario recorded by the workers and, in a separate launch, by the hooks."""

    by_hand: Judged
    by_hooks: Judged

    @property
    def differences(self) -> tuple[str, ...]:
        """Return the differences of the hooks' report in a few words; empty if within the noise.

        Each headline is compared with the slowdown measured in its own launch. The launch's healthy
        runs show the noise: how far two measurements of the same job differ.
        """
        hand, hooks = self.by_hand, self.by_hooks
        for result in (hand, hooks):
            if result.truth is None or result.answer.refused is not None:
                return (f"not both told: {result.answer.refused}",)
        found = []
        if hand.answer.verdict != hooks.answer.verdict:
            found.append(f"verdict {hooks.answer.verdict} for {hand.answer.verdict}")
        named = [_first(result) for result in (hand, hooks)]
        if named[0] != named[1]:
            found.append(f"{named[1]} for {named[0]}")
        apart = self.headline_apart
        noise = (hand.noise or 0.0) + (hooks.noise or 0.0)
        if apart is not None and abs(apart) > max(HEADLINE_WITHIN, noise):
            found.append(f"headline {apart:+.1%}")
        return tuple(found)

    @property
    def headline_apart(self) -> float | None:
        """Return the hooks' headline over the workers' headline, each relative to its own truth."""
        if self.by_hand.truth is None or self.by_hooks.truth is None:
            return None
        return off(self.by_hooks.answer, self.by_hooks.truth) - off(
            self.by_hand.answer, self.by_hand.truth
        )


def pairs_of(by_hand: Sequence[Judged], by_hooks: Sequence[Judged]) -> Mapping[str, Pair]:
    """Return the scenarios that were recorded both ways, by name."""
    known = {result.scenario.name: result for result in by_hand}
    return {
        result.scenario.name: Pair(known[result.scenario.name], result)
        for result in by_hooks
        if result.scenario.name in known
    }


def side_by_side(pairs: Mapping[str, Pair]) -> list[str]:
    """Return a line for each scenario and way of recording, below a line of headings."""
    rows: list[tuple[str, ...]] = [
        ("scenario", "recorded by", "true", "headline", "off", "cause and worker", "apart")
    ]
    for name, pair in pairs.items():
        apart = pair.headline_apart
        said = "; ".join(pair.differences) or ("-" if apart is None else f"{apart:+.1%}")
        rows += [(name, "hand", *_row(pair.by_hand), ""), ("", "hooks", *_row(pair.by_hooks), said)]
    return columns(rows)


def _row(result: Judged) -> tuple[str, ...]:
    if result.truth is None or result.answer.refused is not None:
        return ("-", "-", "-", str(result.answer.refused))
    return (
        f"{result.truth.slowdown:.3f}",
        f"{result.answer.headline:.3f}",
        f"{off(result.answer, result.truth):+.1%}",
        _first(result),
    )


def _first(result: Judged) -> str:
    if not result.answer.causes:
        return "no cause"
    first = result.answer.causes[0]
    where = " ".join(f"{worker.dp}/{worker.pp}" for worker in first.workers)
    return " ".join(part for part in (first.name, where or f"stage {first.stage}") if part)
