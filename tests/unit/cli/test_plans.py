"""`paceline plan`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from app.analysis.documents import MOST_CHARS
from app.cli.plans import plan_file
from app.errors import InfeasiblePlanError, InvalidSpecError
from benchmarks.support.clusters import example, uniform_layers
from tests.support.plans import small_job_spec


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "spec.yaml"
    path.write_text(yaml.safe_dump(example("Ex1", {"layers": uniform_layers()})))
    return path


def test_prints_the_template_and_what_ditto_gives(
    spec: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan_file(spec, "optimal", "t_std", None, as_json=False)
    out = capsys.readouterr().out
    assert "4 stages, 91.036 s an iteration; proven: no template is better by t_std" in out
    assert "2 × 3090 node 0" in out
    assert ", 91.216 s t_std" in out
    assert ", 94.744 s t_std" in out


def test_ditto_prints_how_it_folds(spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan_file(spec, "ditto", "t_std", None, as_json=False)
    out = capsys.readouterr().out
    assert "Folded into 6 nodes of 2 v100: v100 1, 3090 2; virtual template of 12 stages" in out
    assert ", 7 templates of Oobleck" in out


def test_json_is_the_document_alone(spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan_file(spec, "ditto", "t_oobleck", None, as_json=True)
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "paceline.plan/1"
    assert document["method"] == "ditto"
    assert document["oobleck_templates"]
    assert document["planning_time_s"] > 0


def test_time_limit_prints_the_gap(spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan_file(spec, "optimal", "t_oobleck", 0.0, as_json=False)
    assert "above the optimum by t_oobleck" in capsys.readouterr().out


def test_profile_next_to_the_specification(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"forward": row["forward_ms"]} for row in uniform_layers()]
    (tmp_path / "layers.json").write_text(json.dumps(rows))
    path = tmp_path / "spec.json"
    path.write_text(json.dumps(example("Ex1", {"profile": "layers.json"})))
    plan_file(path, "optimal", "t_std", None, as_json=False)
    assert "91.036 s an iteration" in capsys.readouterr().out


def test_malformed_file_names_the_line(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text("model: {}\ndevices: [\n")
    with pytest.raises(InvalidSpecError) as caught:
        plan_file(path, "optimal", "t_std", None, as_json=False)
    assert caught.value.stable_code == "spec.malformed"
    assert caught.value.faults[0].line == 3


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (None, "spec.not_readable"),
        (b"\xff\xfe\x00", "spec.malformed"),
        (b"a" * (MOST_CHARS + 1), "spec.too_large"),
    ],
)
def test_file_that_cannot_be_read(tmp_path: Path, content: bytes | None, code: str) -> None:
    path = tmp_path / "spec.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InvalidSpecError) as caught:
        plan_file(path, "optimal", "t_std", None, as_json=False)
    assert caught.value.stable_code == code


@pytest.mark.slow
def test_method_without_an_answer(spec: Path) -> None:
    document = example("Ex3", {"layers": uniform_layers()})
    spec.write_text(json.dumps(document))
    with pytest.raises(InfeasiblePlanError, match="there are 8"):
        plan_file(spec, "greedy", "t_std", None, as_json=False)


def test_a_whole_job_prints_sizes_pipelines_losses_and_flags(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(small_job_spec()))
    plan_file(path, "optimal", "simulated", None, as_json=True)
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "paceline.plan/1"
    sizes = document["parallelism"]
    assert set(sizes) == {"tp", "pp", "dp", "microbatch", "recompute", "interleave"}
    done = sum(one["microbatches"] for one in document["pipelines"])
    assert done * sizes["microbatch"] == document["global_batch"] == 64
    assert len(document["pipelines"]) == sizes["dp"]
    assert 0 < document["model_flops_utilization"] < 1
    assert sum(document["time"].values()) == pytest.approx(1)
    simpler = document["comparison"]
    assert set(simpler) == {"one_pipeline", "slowest_everywhere", "without_A100", "A100_alone"}
    assert all(other["relative"] > 1 for other in simpler.values())
    assert [loss["device"] for loss in document["after_losses"]] == ["A100", "H100"]
    assert all(loss["iteration_time_ms"] for loss in document["after_losses"])
    plan_file(path, "optimal", "simulated", None, as_json=False)
    out = capsys.readouterr().out
    assert f"dp {sizes['dp']} × pp {sizes['pp']} × tp {sizes['tp']}" in out
    assert "proven: no plan is better by t_std" in out
    assert f"Megatron-Core: --tensor-model-parallel-size {sizes['tp']}" in out
    assert "cannot express unequal stages" in out


def test_a_model_that_fits_nowhere_names_what_would_do(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    small = [{"type": "A100", "nodes": 1, "gpus_per_node": 2, "memory_bytes": 2**30}]
    path.write_text(yaml.safe_dump(small_job_spec(devices=small)))
    with pytest.raises(InfeasiblePlanError) as caught:
        plan_file(path, "optimal", "simulated", None, as_json=True)
    changes = {fault.code: fault for fault in caught.value.faults}
    assert {"more_memory", "more_nodes"} <= set(changes)
    assert changes["more_memory"].column == "devices[0].memory_bytes"
    enough = float(changes["more_memory"].message.split()[1])
    small[0]["memory_bytes"] = enough * 1.01 * 2**30
    path.write_text(yaml.safe_dump(small_job_spec(devices=small)))
    plan_file(path, "optimal", "simulated", None, as_json=True)
