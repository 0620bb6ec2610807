"""Tensor-parallel layers on four ranks: equal to plain layers; zero where columns are left out."""

from __future__ import annotations

from typing import Final

import pytest

from tests.tensor.launching import Found

# Largest relative difference over 20 steps of AdamW, ten of them under plans, of all ranks.
WITHIN: Final = {"torch.float64": 1e-12, "torch.float32": 5e-6}
LOSS_FREE: Final = (
    "migrate",
    "waterfill",
    "migrate_units",
    "waterfill_units",
    "sticky",
    "nearly_all",
    "one_after_the_other",
)


def all_true(found: Found) -> bool:
    return all(value is True for rank in found for value in rank.values())


def test_without_a_plan_everything_equals_plain_layers_bit_by_bit(found: dict[str, Found]) -> None:
    assert len(found["bit_identity"][0]) == 6
    assert all_true(found["bit_identity"])


@pytest.mark.parametrize("how", ["torch.float64 broadcast", "torch.float64 scatter"])
@pytest.mark.parametrize("plan", LOSS_FREE)
def test_migrated_columns_change_neither_loss_nor_gradients(
    found: dict[str, Found], how: str, plan: str
) -> None:
    losses, gradients = zip(*(rank[how][plan] for rank in found["loss_free"]), strict=True)
    assert max(losses) < WITHIN["torch.float64"]
    assert max(gradients) < WITHIN["torch.float64"]


@pytest.mark.parametrize("plan", ["waterfill", "sticky"])
def test_single_precision_differs_by_its_rounding(found: dict[str, Found], plan: str) -> None:
    differences = [max(rank["torch.float32 scatter"][plan]) for rank in found["loss_free"]]
    assert max(differences) < WITHIN["torch.float32"]


def test_resizing_computes_what_the_paper_says(found: dict[str, Found]) -> None:
    assert all_true(found["formula"])


@pytest.mark.parametrize("plan", ["zero columns", "zero hidden_units", "semi columns"])
def test_columns_left_out_have_no_gradient_and_keep_their_state(
    found: dict[str, Found], plan: str
) -> None:
    straggler = found["pruned"][2][plan]
    share = 12 / 16 if plan.startswith("zero") else 6 / 16
    assert straggler["pruned"] == pytest.approx(share * straggler["units"], abs=1)
    for rank in found["pruned"]:
        assert rank[plan]["zero"]
        assert rank[plan]["still"]
        assert rank[plan]["moved"]


def test_only_the_straggler_has_a_lineage_under_zero(found: dict[str, Found]) -> None:
    kept = [rank["zero columns"]["lineage"] for rank in found["pruned"]]
    assert kept == [[], [], [8, 2, 8, 4], []]


def test_imputations_replace_gradients_that_were_left_out(found: dict[str, Found]) -> None:
    assert set(found["imputed"][0]) == {"same", "average"}
    assert all_true(found["imputed"])


def test_gradients_of_replicated_parameters_are_equal_on_all_ranks(found: dict[str, Found]) -> None:
    assert len(found["replicated"][0]) == 6
    assert all_true(found["replicated"])


def test_ranks_know_what_they_compute(found: dict[str, Found]) -> None:
    for name in ("zero", "zero_units", "waterfill", "waterfill_units", "sticky", "sticky_units"):
        computed = [rank[name] for rank in found["shares"]]
        assert sum(computed) == pytest.approx(3.25 if name.startswith("zero") else 4.0)
        for rank in found["shares"]:
            # A head is a quarter of a rank's attention, which is a third of its work; rounding to
            # heads leaves out two if two ranks lend.
            assert abs(rank[f"{name} off"]) <= 2 / 12
            assert rank[f"{name} without"] == pytest.approx(0, abs=1e-12)


def test_costs_are_sampled_over_what_plans_ask_for(found: dict[str, Found]) -> None:
    for rank in found["pre_tested"]:
        assert rank["columns"] == [32]
        # Four samples of one sender, and two of two senders
        assert rank["communicate"] == [2, 8, 16, 28, 2 * 8, 2 * 28]
        assert rank["senders"] == [1, 1, 1, 1, 2, 2]
        assert rank["extract"] == [8, 28]
        assert rank["left"] == [0]


def test_checkpoints_are_whole(found: dict[str, Found]) -> None:
    assert all_true(found["checkpoints"])


def test_columns_that_change_least_are_left_out_and_others_have_their_turn(
    found: dict[str, Found],
) -> None:
    for rank in found["priorities"]:
        assert rank["first"] == list(range(4, 16))
        # Column 0 has no change in its last epoch, and now competes with columns 4 to 7.
        left_out = set(range(16)) - set(rank["second"])
        assert 0 in left_out
        assert left_out - {0} <= {4, 5, 6, 7}


def test_layers_that_change_less_leave_more_out_and_the_mean_holds(
    found: dict[str, Found],
) -> None:
    for gamma, left_out in found["ratios"][0].items():
        much, less, hardly = left_out
        assert much <= less <= hardly
        assert much < hardly
        assert sum(left_out) / 3 == pytest.approx(float(gamma), abs=1 / 128)
        assert min(left_out) >= 0.8 * float(gamma) - 1 / 128


def test_state_made_under_a_plan_is_zero_where_nothing_was_computed(
    found: dict[str, Found],
) -> None:
    assert all_true(found["restored_state"])


def test_megatrons_layers_compute_the_same_when_adapted(found: dict[str, Found]) -> None:
    assert len(found["megatron_layers"][0]) == 10
    assert all_true(found["megatron_layers"])


def test_layers_that_do_more_are_refused_and_left_alone(found: dict[str, Found]) -> None:
    for rank in found["refused_layers"]:
        assert rank == {
            "sequence_parallel": "down: sequence_parallel is not supported",
            "gather_output": "up: gather_output is not supported",
            "input_is_parallel": "down: input_is_parallel must be on",
        }


def test_a_plan_is_in_force_on_all_ranks_from_one_boundary_to_another(
    found: dict[str, Found],
) -> None:
    versions = [rank["versions"] for rank in found["one_boundary"]]
    assert all(version == versions[0] for version in versions)
    assert sorted(set(versions[0])) == [0, 3]
    first = found["one_boundary"][0]
    applied, withdrawn = first["acknowledged"]
    assert (applied["version"], withdrawn["version"]) == (3, 4)
    assert [applied["applied"], withdrawn["applied"]] == [True, True]
    # An acknowledgement has the first step with the plan.
    in_force = [step for step, version in enumerate(versions[0]) if version == 3]
    assert in_force == list(range(applied["step"], withdrawn["step"]))


def test_times_are_those_of_all_ranks_under_the_plan_that_was_in_force(
    found: dict[str, Found],
) -> None:
    first = found["one_boundary"][0]
    timings = first["timings"][0]
    assert (timings["world_size"], timings["ranks"]) == (4, [0, 1, 2, 3])
    assert all(
        0 < matmul_s <= time_s <= timings["measured_step_s"]
        for time_s, matmul_s in zip(timings["times_s"], timings["matmul_s"], strict=True)
    )
    assert timings["costs"] == {
        "communicate": [[4, 0.001, 1], [8, 0.002, 1]],
        "extract": [[4, 0.0005]],
    }
    assert first["in_order"]
    for step, version in first["planned"].items():
        assert version in {None, 3, 4}
        assert (version == 3) == (first["versions"][int(step)] == 3)


def test_the_jobs_own_code_has_the_last_word(found: dict[str, Found]) -> None:
    first = found["refusals"][0]
    assert [(version, applied) for version, applied, _ in first["refused"]] == [
        (version, False) for version in range(1, 8)
    ]
    reasons = [reason for _, _, reason in first["refused"]]
    assert reasons[0] == "gamma = 0.250 exceeds the 0.2 that the job's code allows"
    assert reasons[1] == "world_size: must be 4"
    assert first["not_allowed"] == [[False, "the job's code does not allow plans"]]
    for rank in found["refusals"]:
        assert set(rank["versions"]) == {0}


def test_a_plan_that_is_not_renewed_ends_everywhere_at_the_same_step(
    found: dict[str, Found],
) -> None:
    for rank in found["dead_service"]:
        versions = rank["versions"]
        assert versions == found["dead_service"][0]["versions"]
        assert versions[39] == 1
        assert set(versions[40:]) == {0}


def test_training_goes_on_where_no_service_ever_was(found: dict[str, Found]) -> None:
    for rank in found["dead_service"]:
        assert rank["lonely"] == [0] * 30
        assert rank["losses"][-1] < rank["losses"][0] / 2
    # Reports do not queue up: the newest report replaces the previous one.
    assert found["dead_service"][0]["reports_dropped"] > 10


def test_advice_ends_the_plan_before_it(found: dict[str, Found]) -> None:
    for rank in found["switched_off"]:
        assert rank["versions"][-1] == 0
        assert 1 in rank["versions"]
    assert found["switched_off"][0]["acknowledged"] == [1]


def test_a_rank_that_stops_answering_ends_the_others_by_the_groups_timeout(
    found: dict[str, Found],
) -> None:
    others = found["lost_rank"][:3]
    assert others == [{"raised": True, "by_the_timeout": True}] * 3


@pytest.mark.parametrize("where", ["killed_in_step", "killed_at_boundary"])
def test_a_rank_that_is_killed_ends_the_others_no_later_than_the_groups_timeout(
    found: dict[str, Found], where: str
) -> None:
    assert found[where][:3] == [{"raised": True, "within_the_timeout": True}] * 3


def test_reports_say_the_sizes_of_the_layers_and_the_rows_of_one_step(
    found: dict[str, Found],
) -> None:
    """Also if times are known late, and after other inputs went through the layers."""
    reports = found["posted"][0]["sizes"]
    assert len(reports) > 1
    for sizes in reports:
        kinds = {one["kind"] for one in sizes}
        assert kinds == {"hidden_unit", "column", "row"}
        # Two sequences of six tokens.
        assert {one["tokens"] for one in sizes} == {12}
        by_step = [one for one in sizes if one["plans"] != "once"]
        assert sum(one["share"] for one in by_step) == pytest.approx(1.0)
        assert all(one["units"] * one["width"] * one["value_bytes"] > 0 for one in sizes)


def test_reports_say_what_each_rank_computed_where_a_plan_was_in_force(
    found: dict[str, Found],
) -> None:
    first = found["posted"][0]
    assert set(map(str, first["without_a_plan"])) == {"None"}
    shares = [rank["share"] for rank in found["posted"]]
    assert first["computed"] == [shares] * len(first["computed"])
    # Rank 2 leaves out some columns and lends others, which rank 3 computes.
    assert shares[:2] == [1.0, 1.0]
    assert shares[2] < 0.5
    assert shares[3] > 1.0
