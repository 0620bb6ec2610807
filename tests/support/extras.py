"""Libraries that are too large to be installed for every run of the tests."""

from __future__ import annotations

import importlib
import os
from types import ModuleType

import pytest

from tests.conftest import REQUIRE_ALL

# Set every night, when these libraries are installed; a missing one is a failure then.
REQUIRE_EXTRAS = "PACELINE_REQUIRE_EXTRAS"


def of_extra(module: str) -> ModuleType:
    """Import a module of such a library, or skip the tests of this file."""
    if os.environ.get(REQUIRE_EXTRAS) == "1":
        return importlib.import_module(module)
    skipped: ModuleType = pytest.importorskip(module, reason=f"{module} is not installed")
    return skipped


def of_real_jobs(module: str) -> ModuleType:
    """Import a framework of the real jobs, or skip the tests of this file where CI does not run."""
    if os.environ.get(REQUIRE_ALL) == "1":
        return importlib.import_module(module)
    skipped: ModuleType = pytest.importorskip(module, reason="make install-real-jobs brings it")
    return skipped
