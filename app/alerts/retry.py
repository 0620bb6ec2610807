"""Retries of a delivery: the delays between attempts, and the end of them."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

# What Standard Webhooks proposes: quick at first, for a restart; then patient, for an outage.
DELAYS_S: Final = (0.0, 5.0, 60.0, 300.0, 1800.0, 7200.0)

# A message of yesterday is of no use; the page shows that it was not delivered.
GIVE_UP_AFTER: Final = timedelta(days=1)

# So that all that failed in one outage does not come back in one moment.
JITTER: Final = 0.2


def delay_before(attempt: int, jitter: float) -> timedelta:
    """Return how long to wait before an attempt.

    Parameters
    ----------
    jitter : float
        A random number, 0 to 1.
    """
    base_s = DELAYS_S[min(attempt, len(DELAYS_S)) - 1]
    return timedelta(seconds=base_s * (1 + JITTER * (2 * jitter - 1)))


def wait_before(
    attempt: int, jitter: float, age: timedelta, retry_after_s: float | None
) -> timedelta | None:
    """Return how long to wait before an attempt, or None where there is to be none.

    Parameters
    ----------
    attempt : int
        The number of the attempt to come, 2 at least.
    jitter : float
        A random number, 0 to 1.
    age : timedelta
        Since the delivery was created.
    retry_after_s : float or None
        What the receiver asked for; the longer one counts.
    """
    wait = delay_before(attempt, jitter)
    if retry_after_s is not None:
        wait = max(wait, timedelta(seconds=retry_after_s))
    return None if age + wait > GIVE_UP_AFTER else wait
