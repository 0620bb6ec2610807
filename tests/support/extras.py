"""Libraries of optional extras, which are too large to be installed for every test run."""

from __future__ import annotations

import importlib
import os
from types import ModuleType

import pytest

from tests.conftest import REQUIRE_ALL

# Set in nightly runs, where the extras are installed: a missing one is a failure there.
REQUIRE_EXTRAS = "PACELINE_REQUIRE_EXTRAS"


def of_extra(module: str, extra: str) -> ModuleType:
    """Import a module of an extra; if it is missing, skip the tests of this file."""
    if os.environ.get(REQUIRE_EXTRAS) == "1":
        return importlib.import_module(module)
    skipped: ModuleType = pytest.importorskip(module, reason=f"the extra {extra} is not installed")
    return skipped


def of_real_jobs(module: str) -> ModuleType:
    """Import a framework of the real jobs; if it is missing outside of CI, skip the file."""
    if os.environ.get(REQUIRE_ALL) == "1":
        return importlib.import_module(module)
    skipped: ModuleType = pytest.importorskip(module, reason="make install-real-jobs brings it")
    return skipped
