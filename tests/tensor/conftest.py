"""The checks on four ranks, run once for all tests."""

from __future__ import annotations

from functools import cache

import pytest

from tests.conftest import skip_or_fail
from tests.real_jobs.jobs import Framework
from tests.real_jobs.launching import LaunchError, missing
from tests.tensor.launching import Found, run_checks


@pytest.fixture(scope="session")
def found() -> dict[str, Found]:
    """Return each rank's results of each check."""
    reason = missing(Framework.MEGATRON)
    if reason is not None:
        skip_or_fail(reason)
    found = _checked()
    if isinstance(found, LaunchError):
        raise found
    return found


@cache
def _checked() -> dict[str, Found] | LaunchError:
    """Run the checks once, even if they fail: not again for every test."""
    try:
        return run_checks()
    except LaunchError as error:
        return error
