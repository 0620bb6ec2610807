"""Which units a rank leaves out: at random, or those whose weights have changed least.

Algorithm 1 of the paper (section III-B): random (Rd), by priority (Pri), and by priority with a
separate ratio for each layer (PriDiff).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

import torch

from paceline_client.tensor.shedding import Site

# The least ratio of a layer, as a share of the plan's ratio.
_DECAY: Final = 0.8
_BISECTIONS: Final = 60


class Selection(Enum):
    """How units to leave out are chosen."""

    RANDOM = "random"
    PRIORITY = "priority"
    PRIORITY_BY_LAYER = "priority_by_layer"


@dataclass(eq=False, slots=True)
class _Tracked:
    """The changes of a site's units."""

    site: Site
    old: list[torch.Tensor]  # the members at the begin of the epoch
    pruned: torch.Tensor  # (units,): whether a unit was left out in this epoch
    # (units,): mean change of each unit's numbers in the last epoch in which it was computed
    variation: torch.Tensor | None = None


class Selector:
    """Chooses units, from their changes if the selection depends on these.

    `sites` have the same names on all ranks. `seed` is that of random choices, also between units
    of equal change. `PRIORITY` and `PRIORITY_BY_LAYER` keep a copy of the weights, compared once
    per epoch; before the first comparison they choose at random.
    """

    def __init__(self, sites: dict[str, Site], selection: Selection, seed: int = 0) -> None:
        self._selection = selection
        self._generator = torch.Generator().manual_seed(seed)
        self._tracked = {
            name: _Tracked(site, self._copies(site), torch.zeros(site.units, dtype=torch.bool))
            for name, site in sites.items()
        }

    def end_epoch(self) -> None:
        """Compare the weights with those at the begin of the epoch.

        Units that were left out keep their earlier variation: their weights did not change because
        of that, and they would never be computed again.
        """
        if self._selection is Selection.RANDOM:
            return
        for tracked in self._tracked.values():
            site = tracked.site
            changed = _variation(site, tracked.old)
            if tracked.variation is not None:
                changed = torch.where(tracked.pruned, tracked.variation, changed)
            elif bool(tracked.pruned.any()):
                # Not computed for a whole epoch: the average variation.
                fresh = changed[~tracked.pruned]
                mean = fresh.mean() if fresh.numel() else changed.new_zeros(())
                changed = torch.where(tracked.pruned, mean, changed)
            tracked.variation = changed
            tracked.old = self._copies(site)
            tracked.pruned = torch.zeros_like(tracked.pruned)

    def counts(self, wanted: dict[str, int], most: dict[str, int]) -> dict[str, int]:
        """Return how many units each site leaves out.

        `wanted` are the numbers of the plan, `most` those from which a site can choose.
        """
        known = [name for name in wanted if self._tracked[name].variation is not None]
        if (
            self._selection is not Selection.PRIORITY_BY_LAYER
            or not any(wanted.values())
            or len(known) < len(wanted)
        ):
            return wanted
        work = {name: float(self._tracked[name].site.work) for name in wanted}
        units = {name: self._tracked[name].site.units for name in wanted}
        gamma = sum(work[name] * wanted[name] / units[name] for name in wanted) / sum(work.values())
        variations = [
            variation for name in wanted if (variation := self._variation(name)) is not None
        ]
        threshold = torch.quantile(torch.cat(variations).double(), gamma)
        own = {
            name: float((variation < threshold).double().mean())
            for name in wanted
            if (variation := self._variation(name)) is not None
        }
        floor = _DECAY * gamma
        top = {name: most[name] / units[name] for name in wanted}
        ratios = project({name: max(own[name], floor) for name in wanted}, work, gamma, floor, top)
        return {name: round(ratios[name] * units[name]) for name in wanted}

    def choose(self, name: str, count: int, among: int) -> torch.Tensor:
        """Return which of a site's first `among` units to leave out, ascending."""
        tracked = self._tracked[name]
        order = torch.randperm(among, generator=self._generator)
        if self._selection is not Selection.RANDOM and tracked.variation is not None:
            # A stable sort of a random order chooses between equal units at random.
            order = order[torch.argsort(tracked.variation[:among][order], stable=True)]
        chosen = order[:count].sort().values
        tracked.pruned[chosen] = True
        return chosen

    def _variation(self, name: str) -> torch.Tensor | None:
        return self._tracked[name].variation

    def _copies(self, site: Site) -> list[torch.Tensor]:
        if self._selection is Selection.RANDOM:
            return []
        return [member.parameter.detach().clone() for member in site.members]


def _variation(site: Site, old: list[torch.Tensor]) -> torch.Tensor:
    """Return the mean absolute change of each unit's numbers."""
    total = torch.zeros(site.units, dtype=torch.float64)
    numbers = 0
    for member, before in zip(site.members, old, strict=True):
        change = (member.parameter.detach() - before).abs()
        by_unit = member.by_unit(change)
        total += by_unit.double().sum(dim=1).cpu()
        numbers += by_unit.shape[1]
    return total / numbers


def project(
    ratios: dict[str, float],
    weights: dict[str, float],
    mean: float,
    low: float,
    high: dict[str, float],
) -> dict[str, float]:
    """Return the ratios nearest to these whose weighted mean is `mean`, each within its bounds.

    `low` is at most `mean`. If the bounds `high` do not allow the mean, all of them are reached.
    """

    def shifted(by: float) -> dict[str, float]:
        return {
            name: min(max(ratio + by, min(low, high[name])), high[name])
            for name, ratio in ratios.items()
        }

    whole = sum(weights.values())
    below, above = -1.0, 1.0
    for _ in range(_BISECTIONS):
        middle = (below + above) / 2
        now = shifted(middle)
        if sum(weights[name] * now[name] for name in now) / whole < mean:
            below = middle
        else:
            above = middle
    return shifted(above)
