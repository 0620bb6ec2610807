"""Reports of real analyses of synthetic sessions."""

from __future__ import annotations

import pytest

from app.analysis.report.document import Report
from tests.support import reports


@pytest.fixture
def slow_worker() -> Report:
    """Return the report of 3 × 4 workers of which (1, 2) computes half as fast as its peers."""
    return reports.slow_worker()


@pytest.fixture
def healthy() -> Report:
    """Return the report of a session without stragglers."""
    return reports.healthy()


@pytest.fixture
def distrusted() -> Report:
    """Return the report of a session whose replay is too far from the recording."""
    return reports.distrusted()
