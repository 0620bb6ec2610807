"""What no execution of any template is shorter than."""

from __future__ import annotations

from typing import Final

from app.analysis.planning.search.best_first import Found, Search, Standing
from app.analysis.planning.search.budget import SearchBudget
from app.analysis.planning.search.objectives import ExecutedBound, most_stages
from app.analysis.planning.search.passes import AT_LEAST, SearchPasses
from app.analysis.planning.template import Template, evaluate

# Cells of each search, so that the proof takes no longer than the search for the plan.
_MOST_CELLS: Final = 10_000_000


def bounds_of_execution(
    passes: SearchPasses, best: Template, smallest_ps: int, budget: SearchBudget
) -> tuple[Found, ...]:
    """Return searches of which the lowest bound is what no execution of a template is below.

    Parameters
    ----------
    best : Template
        What cannot execute faster than this one is not looked into.
    smallest_ps : int
        Every template has a stage that takes at least this, without transfers.
    """
    problem, microbatches = passes.problem, passes.problem.spec.microbatches
    fewest = 1 if problem.spec.allow_idle or problem.spec.replicate else problem.spec.nodes
    kinds = [True] if fewest < microbatches else []
    if most_stages(problem) >= microbatches:
        kinds.append(False)
    standing = Standing(best, evaluate(problem, best).simulated, smallest_ps)
    found = []
    for fewer in kinds:
        relaxed = SearchPasses(problem, passes.space, AT_LEAST, _MOST_CELLS)
        search = Search(relaxed, ExecutedBound(microbatches, fewer), budget, standing)
        one = search.run()
        if one is None:
            raise AssertionError("there is a template")
        found.append(one)
    return tuple(found)
