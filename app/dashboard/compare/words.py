"""Words that pages of comparisons share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from app.dashboard.ui.format import EN_DASH, MINUS, NBSP, count, seconds
from app.services.compare.step_times import SIGNIFICANT

if TYPE_CHECKING:
    from app.services.compare.step_times import Difference

# p below this is said as such.
SMALL: Final = 0.001


def change_s(value: float) -> str:
    """Return a change of a time: ``−3.91 s``, ``+120 ms``."""
    if value == 0.0:
        return f"0{NBSP}s"
    text = seconds(abs(value))
    return f"{MINUS}{text}" if value < 0 else f"+{text}"


def chance(
    steps: Difference, of: str = "step", within: Difference | None = None
) -> tuple[str, str, str]:
    """Return whether a difference may be a chance finding, what says so, and what that means.

    Parameters
    ----------
    within : Difference or None
        Of the steps within sessions, which answer where these are too few.
    """
    first, second = steps.steps
    note = f"Mann{EN_DASH}Whitney, {count(first)} + {count(second)} {of}s"
    hint = f"Probability of such a difference of ranks by chance; {of}s are assumed independent"
    if within is not None and within.tells and not steps.tells:
        said, counted, hint = chance(within)
        too_few = f"{count(first)} and {count(second)} {of}s are too few; by the steps within them"
        return said, f"{too_few}: {counted}", f"{hint}, and {of}s alike but for what changed"
    if steps.p is None:
        return "Cannot say", f"{count(first)} and {count(second)} {of}s are too few", hint
    if not steps.tells:
        least = f"of that many {of}s the test gives no less than p = {steps.least_p:.3f}"
        return "Cannot say", f"{note}: {least}", hint
    said = "p < 0.001" if steps.p < SMALL else f"p = {steps.p:.3f}"
    answer = "Chance" if steps.p >= SIGNIFICANT else "Change" if steps.real else "Unclear"
    return f"{answer}, {said}", note, hint
