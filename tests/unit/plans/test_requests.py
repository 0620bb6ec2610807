"""Plans in the database, written and read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import zstandard
from pydantic import TypeAdapter

from app.analysis.json_text import plain, to_json
from app.analysis.planning.document import NoAnswer, PlanDocument
from app.analysis.planning.job.build import job_document, slowest_iteration
from app.analysis.planning.job.plan import plan_job
from app.analysis.planning.job.spec import JobSpec
from app.errors import UnknownDocumentError
from app.plans.requests import JobResult, PlanOutline, pack_result, unpack_result
from app.plans.specs.spec import parse_any_spec
from tests.support.plans import small_job_spec

HERE = Path(__file__).parent
WRITTEN = [HERE / "optimal.json", HERE / "ditto.json"]


def stored(path: Path) -> tuple[bytes, object]:
    """Return a result as stored in the database, and its headline."""
    both = json.loads(path.read_text())
    text = json.dumps(both["result"], separators=(",", ":")).encode()
    return zstandard.compress(text), both["headline"]


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: path.stem)
def test_a_stored_plan_opens_unchanged(path: Path) -> None:
    blob, headline = stored(path)
    result = unpack_result(blob)
    assert to_json(result, compact=True).encode() == zstandard.decompress(blob)
    assert zstandard.decompress(pack_result(result)) == zstandard.decompress(blob)
    assert plain(PlanOutline.of(result.plan)) == headline
    assert TypeAdapter(PlanOutline).validate_python(headline) == PlanOutline.of(result.plan)


def test_parts_that_only_some_plans_have_are_read() -> None:
    optimal, ditto = (unpack_result(stored(path)[0]).plan for path in WRITTEN)
    assert isinstance(optimal, PlanDocument)
    assert isinstance(ditto, PlanDocument)
    assert [len(stage.replicas) for stage in optimal.stages] == [3]
    assert (optimal.folding, optimal.oobleck_templates) == (None, ())
    assert optimal.certificate is not None
    assert isinstance(optimal.comparison["greedy"], NoAnswer)
    assert ditto.folding is not None
    assert ditto.folding.factors == {"a6000": 2, "v100": 1}
    assert ditto.lower_bound_ms is None
    assert ditto.gap is None


def test_a_whole_job_is_stored_as_itself() -> None:
    spec = parse_any_spec(small_job_spec())
    assert isinstance(spec, JobSpec)
    found = plan_job(spec)
    result = JobResult(job_document(found), slowest_iteration(found.plan))
    assert unpack_result(pack_result(result)) == result
    outline = PlanOutline.of(result.plan)
    assert (outline.stages, outline.optimal, outline.over) == (found.plan.pp, True, {})
    assert outline.iteration_time_ms.t_std == pytest.approx(found.plan.time_ps / 1e9)


def test_a_plan_of_a_later_version_is_refused_with_a_code() -> None:
    result = json.loads(zstandard.decompress(stored(WRITTEN[0])[0]))
    # A later version's document may have other fields as well.
    later = {"plan": {"schema": "paceline.plan/2", "templates": result["plan"]["stages"]}}
    with pytest.raises(UnknownDocumentError, match="A later one stored it") as caught:
        unpack_result(zstandard.compress(json.dumps(later).encode()))
    assert caught.value.stable_code == "plan.unknown_version"
