"""Tables of kept promises."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from tests.referee.fixes.promise import NEAR, TEMPLATE, Promise, Refereed


def lines(jobs: Sequence[Refereed]) -> Iterator[str]:
    """Yield the table by fix, and a summary as the last line."""
    promises = [promise for job in jobs for promise in job.promises]
    healthy = [job for job in jobs if job.healthy]
    yield (
        f"{len(jobs)} jobs, {len(healthy)} of them healthy; {len(promises)} fixes promised on the "
        f"others, each made and executed"
    )
    yield ""
    yield (
        f"{'fix':<26}{'physics':>13}{'fixes':>7}{'gain promised':>15}{'realised':>10}"
        f"{'error, median':>15}{'95 %':>8}{'worst':>8}{'within 5 %':>12}"
    )
    for key in sorted({_key(promise) for promise in promises}):
        yield _line(key, [promise for promise in promises if _key(promise) == key])
    missing = Counter(action for job in jobs for action in job.unexecuted)
    if missing:
        yield ""
        yield "Not executed: " + ", ".join(f"{name} {count}" for name, count in missing.items())
    yield ""
    yield summary(jobs)


def summary(jobs: Sequence[Refereed]) -> str:
    """Return the last line; templates count separately, and upper bounds do not count."""
    promises = [promise for job in jobs for promise in job.promises if not job.healthy]
    said = [promise for promise in promises if not promise.open]
    errors = [promise.error for promise in said if promise.action != TEMPLATE]
    templates = [promise.error for promise in said if promise.action == TEMPLATE]
    exceeded = [promise.error for promise in promises if promise.open]
    middle = 100 * float(np.median(errors)) if errors else 0.0
    on_healthy = sum(len(job.promises) + len(job.unexecuted) for job in jobs if job.healthy)
    return (
        f"fixes within 5 %: {_near(errors):.1f} %, median error {middle:.2f} %, "
        f"templates within 5 %: {_near(templates):.1f} % of {len(templates)}, "
        f"kept of {len(exceeded)} that say up to: {_near(exceeded):.1f} %, "
        f"gains promised on healthy jobs: {on_healthy}"
    )


def _near(errors: Sequence[float]) -> float:
    return 100 * float(np.mean([error <= NEAR for error in errors])) if errors else 100.0


def _key(promise: Promise) -> tuple[str, str]:
    return promise.action + (" (at most)" if promise.at_most else ""), promise.physics


def _line(key: tuple[str, str], promises: Sequence[Promise]) -> str:
    errors = np.array([promise.error for promise in promises])
    promised = float(np.mean([1 - 1 / promise.promised for promise in promises]))
    realised = float(np.mean([1 - 1 / promise.realised for promise in promises]))
    return (
        f"{key[0]:<36.36}{key[1][:3]:>3}{len(promises):>7}{100 * promised:>13.1f} %"
        f"{100 * realised:>8.1f} %{100 * np.median(errors):>13.2f} %"
        f"{100 * np.quantile(errors, 0.95):>6.1f} %{100 * errors.max():>6.1f} %"
        f"{100 * np.mean(errors <= NEAR):>10.0f} %"
    )
