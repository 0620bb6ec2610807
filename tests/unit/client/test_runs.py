from __future__ import annotations

import pytest

from paceline_client import Run, run_from_environment


@pytest.mark.parametrize(
    ("environment", "run"),
    [
        ({"SLURM_JOB_ID": "812", "SLURM_RESTART_COUNT": "2"}, Run("812", 2)),
        ({"TORCHELASTIC_RUN_ID": "llama", "TORCHELASTIC_RESTART_COUNT": "1"}, Run("llama", 1)),
        (
            {
                "SLURM_JOB_ID": "812",
                "SLURM_RESTART_COUNT": "2",
                "TORCHELASTIC_RUN_ID": "none",
                "TORCHELASTIC_RESTART_COUNT": "1",
            },
            Run("812/2", 1),
        ),
        (
            {"PACELINE_RUN_ID": "pod-7", "PACELINE_RESTART": "0", "SLURM_JOB_ID": "812"},
            Run("pod-7", 0),
        ),
    ],
)
def test_the_launcher_tells_the_run_and_its_restarts(environment: dict[str, str], run: Run) -> None:
    assert run_from_environment(environment) == run


@pytest.mark.parametrize("environment", [{}, {"SLURM_JOB_ID": "812"}])
def test_where_restarts_are_not_counted_every_start_is_a_run(environment: dict[str, str]) -> None:
    first, second = (run_from_environment(environment) for _ in range(2))
    assert first.run_id != second.run_id
    assert first.restart == second.restart == 0
    assert first.run_id.startswith("812/" if environment else "")


def test_a_run_that_is_wanted_once_has_the_launchers_name_and_restarts_and_one_of_its_own() -> None:
    environment = {"SLURM_JOB_ID": "812", "SLURM_RESTART_COUNT": "2"}
    first, second = (run_from_environment(environment, once=True) for _ in range(2))
    assert first.run_id != second.run_id
    assert first.run_id.startswith("812/")
    assert first.restart == second.restart == 2
