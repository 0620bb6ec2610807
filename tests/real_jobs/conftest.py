"""The real jobs of CI: launched once for all tests of a run, with a table at its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from tests.conftest import skip_or_fail
from tests.real_jobs.comparing import pairs_of, side_by_side
from tests.real_jobs.judging import Judged, summary
from tests.real_jobs.launching import missing
from tests.real_jobs.running import AT_ONCE, JobRunner, judge_all
from tests.real_jobs.scenarios import HOOKED, REPRESENTATIVE, SCENARIOS

_by_hand = pytest.StashKey[Sequence[Judged]]()
_by_hooks = pytest.StashKey[Sequence[Judged]]()


@pytest.fixture(scope="session")
def told(request: pytest.FixtureRequest) -> Mapping[str, Judged]:
    """Return the result of each representative scenario whose test was selected, by name."""
    return _judged(request, REPRESENTATIVE, hooked=False)


@pytest.fixture(scope="session")
def told_by_hooks(request: pytest.FixtureRequest) -> Mapping[str, Judged]:
    """Return the results of the scenarios that the client's hooks record, by name."""
    return _judged(request, HOOKED, hooked=True)


def _judged(
    request: pytest.FixtureRequest, names: Sequence[str], *, hooked: bool
) -> Mapping[str, Judged]:
    fixture = "told_by_hooks" if hooked else "told"
    selected = {
        item.name
        for item in request.session.items
        if isinstance(item, pytest.Function) and fixture in item.fixturenames
    }
    chosen = [
        SCENARIOS[name] for name in names if any(test.endswith(f"[{name}]") for test in selected)
    ]
    for framework in dict.fromkeys(scenario.job.framework for scenario in chosen):
        reason = missing(framework)
        if reason is not None:
            skip_or_fail(reason)
    results = judge_all(chosen, JobRunner(hooked=hooked), at_once=AT_ONCE)
    request.config.stash[_by_hooks if hooked else _by_hand] = results
    return {result.scenario.name: result for result in results}


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Print the table, where the jobs ran."""
    by_hand, by_hooks = config.stash.get(_by_hand, ()), config.stash.get(_by_hooks, ())
    pairs = pairs_of(by_hand, by_hooks)
    if pairs:
        terminalreporter.section("real jobs, recorded by hand and by hooks")
        for line in side_by_side(pairs):
            terminalreporter.write_line(line)
    if by_hand or by_hooks:
        terminalreporter.section("real jobs")
        for line in summary([*by_hand, *by_hooks]):
            terminalreporter.write_line(line)
