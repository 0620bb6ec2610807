"""The checks on four ranks, done once for all tests of a run."""

from __future__ import annotations

from functools import cache

import pytest

from tests.conftest import skip_or_fail
from tests.real_jobs.jobs import Framework
from tests.real_jobs.launching import LaunchError, missing
from tests.tensor.launching import Found, run_checks


@pytest.fixture(scope="session")
def found() -> dict[str, Found]:
    """Return what each rank found in each check."""
    reason = missing(Framework.MEGATRON)
    if reason is not None:
        skip_or_fail(reason)
    found = _checked()
    if isinstance(found, LaunchError):
        raise found
    return found


@cache
def _checked() -> dict[str, Found] | LaunchError:
    """Do the checks once, also where they fail: not again for every test."""
    try:
        return run_checks()
    except LaunchError as error:
        return error
