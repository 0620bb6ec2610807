"""The flags of a plan, parsed by the frameworks themselves."""

from __future__ import annotations

import inspect
import json
import shlex

import pytest

from app.analysis.planning.job.costs import GEMM_EFFICIENCY
from app.analysis.planning.job.framework_flags import framework_flags
from app.analysis.planning.job.plan import plan_job
from app.analysis.planning.job.space import JobPlan
from app.analysis.planning.job.spec import FixedParallelism, JobDevice, JobSpec, Recompute
from app.analysis.planning.transformer import Accelerator, Transformer
from tests.support.nightly import by_night


def planned(nodes: dict[str, int], fixed: FixedParallelism) -> JobPlan:
    devices = tuple(
        JobDevice(Accelerator.known(name), number, GEMM_EFFICIENCY, 300.0)
        for name, number in nodes.items()
    )
    model = Transformer(32, 4096, 32, 50257, 2048, 1, 16384, 32)
    spec = JobSpec(model, devices, 8, 96, 200.0, fixed)
    return plan_job(spec, compare=False).plan


UNEQUAL = FixedParallelism(8, 2, 1, 1, Recompute.FULL, 1)
CHUNKS = FixedParallelism(8, 2, 2, 1, Recompute.SELECTIVE, 2)


@by_night
@pytest.mark.slow
def test_unequal_stages_are_a_layout_that_megatron_reads() -> None:
    layout = pytest.importorskip("megatron.core.transformer.pipeline_parallel_layer_layout")
    plan = planned({"A100": 1, "H100": 1}, UNEQUAL)
    blocks = [stage.blocks for stage in plan.pipelines[0].template.stages]
    assert len(set(blocks)) == 2
    words = shlex.split(framework_flags(plan)[0].flags)
    text = words[words.index("--pipeline-model-parallel-layout") + 1]
    read = layout.PipelineParallelLayerLayout(text, 2)
    read.validate_layer_layout(num_layers=32, mtp_num_layers=0)
    stages = layout.PipelineParallelLayerLayout.parse_str_to_list(text)
    assert [sum(layer.name == "decoder" for layer in stage) for stage in stages] == blocks


def test_torchtitan_cuts_stages_as_the_plan_does() -> None:
    _, titan, _ = framework_flags(planned({"A100": 4}, CHUNKS))
    # Without these flags, TorchTitan takes a block from the first and the last stage.
    for flag in (
        "--parallelism.pipeline_parallel_first_stage_less_layers 0",
        "--parallelism.pipeline_parallel_last_stage_less_layers 0",
        "--parallelism.pipeline_parallel_layers_per_stage 8",
    ):
        assert flag in titan.flags
    _, titan, _ = framework_flags(planned({"A100": 1, "H100": 1}, UNEQUAL))
    assert any("module_fqns_per_model_part" in one for one in titan.unsaid)


def test_deepspeed_has_a_configuration_and_the_arguments_of_a_pipeline() -> None:
    *_, deep = framework_flags(planned({"A100": 4}, CHUNKS))
    config, _, pipeline = deep.flags.partition(" and ")
    read = json.loads(config)
    sizes = (
        read["train_batch_size"],
        read["train_micro_batch_size_per_gpu"],
        read["gradient_accumulation_steps"],
    )
    assert sizes == (96, 1, 48)
    assert "num_pp=2, num_mp=8, num_dp=2" in pipeline
    *_, whole = framework_flags(
        planned({"A100": 2}, FixedParallelism(8, 1, 2, 1, Recompute.NONE, 1))
    )
    assert json.loads(whole.flags)["tensor_parallel"] == {"autotp_size": 8}


@pytest.mark.slow
def test_deepspeed_knows_the_arguments() -> None:
    module = pytest.importorskip("deepspeed.runtime.pipe.module")
    topology = pytest.importorskip("deepspeed.runtime.pipe.topology")
    known = inspect.signature(module.PipelineModule.__init__).parameters
    assert {"layers", "topology", "partition_method", "activation_checkpoint_interval"} <= {*known}
    grid = topology.PipeModelDataParallelTopology(num_pp=2, num_mp=8, num_dp=2)
    assert grid.world_size() == 32


def test_flags_of_mixed_clusters_say_the_order_of_the_nodes() -> None:
    megatron, titan, deep = framework_flags(planned({"A100": 1, "H100": 1}, UNEQUAL))
    order = "the order of nodes: start 1 × A100, then 1 × H100"
    reverse = "the order of nodes: start 1 × H100, then 1 × A100"
    for framework in (megatron, titan, deep):
        assert {order, reverse} & {*framework.unsaid}


def test_a_node_with_all_stages_of_one_pipeline_has_a_placement_of_its_own() -> None:
    # Three pipelines of two stages on three nodes of two tensor-parallel groups each.
    sizes = FixedParallelism(4, 2, 3, 1, Recompute.FULL, 1)
    megatron, titan, _ = framework_flags(planned({"A100": 3}, sizes))
    assert "--use-tp-pp-dp-mapping" in megatron.flags
    assert megatron.unsaid == ()
    assert any(item.startswith("the placement") for item in titan.unsaid)
    # With both pipelines of a pair of nodes on each of them, the default order is the plan's.
    sizes = FixedParallelism(4, 2, 4, 1, Recompute.FULL, 1)
    megatron, titan, _ = framework_flags(planned({"A100": 4}, sizes))
    assert "--use-tp-pp-dp-mapping" not in megatron.flags
    assert not any(item.startswith("the placement") for item in titan.unsaid)


def test_attention_is_a_flag() -> None:
    plan = planned({"A100": 4}, CHUNKS)
    assert "--attention-backend flash" in framework_flags(plan)[0].flags
