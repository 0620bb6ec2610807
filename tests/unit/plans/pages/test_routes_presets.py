"""Presets of whole jobs."""

from __future__ import annotations

import pytest

from app.analysis.planning.job.plan import plan_job
from app.analysis.planning.job.spec import JobSpec
from app.plans.pages.routes import JOB_PRESETS
from app.plans.specs.spec import read_request


@pytest.mark.parametrize("key", JOB_PRESETS)
def test_every_preset_has_a_proven_plan(key: str) -> None:
    spec = read_request({"spec": JOB_PRESETS[key].spec}).spec
    assert isinstance(spec, JobSpec)
    assert plan_job(spec).optimal
