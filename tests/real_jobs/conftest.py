"""Real jobs of CI: launched once for all tests of a run, and a table of them at its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from tests.conftest import skip_or_fail
from tests.real_jobs.judging import Judged, summary
from tests.real_jobs.launching import missing
from tests.real_jobs.running import AT_ONCE, JobRunner, judge_all
from tests.real_jobs.scenarios import REPRESENTATIVE, SCENARIOS

_results = pytest.StashKey[Sequence[Judged]]()


@pytest.fixture(scope="session")
def told(request: pytest.FixtureRequest) -> Mapping[str, Judged]:
    """Return what came of every representative scenario whose test was selected, by name."""
    selected = {item.name for item in request.session.items}
    chosen = [
        SCENARIOS[name]
        for name in REPRESENTATIVE
        if any(test.endswith(f"[{name}]") for test in selected)
    ]
    for framework in dict.fromkeys(scenario.job.framework for scenario in chosen):
        reason = missing(framework)
        if reason is not None:
            skip_or_fail(reason)
    results: Sequence[Judged] = judge_all(chosen, JobRunner(), at_once=AT_ONCE)
    request.config.stash[_results] = results
    return {result.scenario.name: result for result in results}


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Print the table, where the jobs ran."""
    if _results in config.stash:
        terminalreporter.section("real jobs")
        for line in summary(config.stash[_results]):
            terminalreporter.write_line(line)
