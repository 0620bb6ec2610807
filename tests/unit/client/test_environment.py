"""The run, machine, launcher and labels of a process, from its environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline_client import Run, run_from_environment
from paceline_client.environment import Machine, in_container, labels_of, launcher_of, machine_of

POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "llama-worker-3"}


@pytest.mark.parametrize(
    "variable", ["PACELINE_NODE", "K8S_NODE_NAME", "NODE_NAME", "SLURMD_NODENAME"]
)
def test_the_node_comes_from_outside_of_the_container(variable: str, tmp_path: Path) -> None:
    found = machine_of(POD | {variable: "node-7"}, hostname="llama-worker-3", root=tmp_path)
    assert found == Machine("node-7", guessed=False, pod="llama-worker-3")
    assert found.document(5) == {"hosts": {"5": "node-7"}, "pods": {"5": "llama-worker-3"}}


def test_the_most_explicit_name_comes_first(tmp_path: Path) -> None:
    both = {"SLURMD_NODENAME": "slurm-7", "K8S_NODE_NAME": " ", "PACELINE_NODE": "rack-2-7"}
    assert machine_of(both, hostname="x", root=tmp_path).node == "rack-2-7"
    both.pop("PACELINE_NODE")
    assert machine_of(both, hostname="x", root=tmp_path).node == "slurm-7"


def test_a_host_without_a_container_names_itself(tmp_path: Path) -> None:
    found = machine_of({}, hostname="node-7", root=tmp_path)
    assert found == Machine("node-7")
    assert found.document(0) == {"hosts": {"0": "node-7"}}


@pytest.mark.parametrize(
    ("mark", "text"),
    [
        (".dockerenv", ""),
        ("run/.containerenv", ""),
        ("proc/1/cgroup", "0::/kubepods.slice/cri-containerd-1.scope\n"),
        ("proc/self/cgroup", "12:cpu:/docker/4f1d\n"),
    ],
)
def test_a_containers_own_name_is_a_guess(mark: str, text: str, tmp_path: Path) -> None:
    (tmp_path / mark).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / mark).write_text(text)
    found = machine_of({}, hostname="4f1d", root=tmp_path)
    assert found == Machine("4f1d", guessed=True)
    assert found.document(2) == {"hosts": {"2": "4f1d"}, "guessed_hosts": {"4f1d": "hostname"}}


def test_a_login_session_is_no_container(tmp_path: Path) -> None:
    (tmp_path / "proc/1").mkdir(parents=True)
    (tmp_path / "proc/1/cgroup").write_text("0::/init.scope\n")
    assert not in_container({}, tmp_path)
    assert in_container({"container": "podman"}, tmp_path)


def test_a_pod_has_its_namespace_and_the_process_its_local_rank(tmp_path: Path) -> None:
    file = tmp_path / "var/run/secrets/kubernetes.io/serviceaccount/namespace"
    file.parent.mkdir(parents=True)
    file.write_text("ml\n")
    found = machine_of(POD | {"LOCAL_RANK": "3"}, hostname="llama-worker-3", root=tmp_path)
    assert found == Machine("llama-worker-3", guessed=True, pod="ml/llama-worker-3", local_rank=3)
    named = machine_of(POD | {"POD_NAMESPACE": "prod", "POD_NAME": "w-1"}, root=tmp_path)
    assert named.pod == "prod/w-1"
    assert machine_of({"SLURM_LOCALID": "2"}, root=tmp_path).local_rank == 2
    assert machine_of({"LOCAL_RANK": "first"}, root=tmp_path).local_rank is None


def test_a_name_that_the_server_would_refuse_is_none(tmp_path: Path) -> None:
    environment = {"PACELINE_NODE": "n" * 256, "NODE_NAME": "node\n7", "SLURMD_NODENAME": "node-7"}
    assert machine_of(environment, hostname="x", root=tmp_path).node == "node-7"
    assert machine_of({}, hostname="\0", root=tmp_path).node == "unknown"


def test_the_launcher_is_the_outermost_that_names_its_job() -> None:
    torchrun = {"TORCHELASTIC_RUN_ID": "llama", "TORCHELASTIC_RESTART_COUNT": "2"}
    slurm = {"SLURM_JOB_ID": "4711", "SLURM_RESTART_COUNT": "1", "SLURM_STEP_ID": "0"}
    assert launcher_of(torchrun) == {"name": "torchelastic", "job": "llama", "restart": "2"}
    assert launcher_of(torchrun | slurm) == {
        "name": "slurm", "job": "4711", "restart": "1", "step": "0",
    }  # fmt: skip
    assert launcher_of({"TORCHELASTIC_RUN_ID": "none"}) == {}
    assert launcher_of({}) == {}


def test_a_scheduler_labels_the_job(tmp_path: Path) -> None:
    slurm = {
        "SLURM_JOB_USER": "ada",
        "SLURM_JOB_ACCOUNT": "vision",
        "SLURM_JOB_PARTITION": " ",
        "POD_NAMESPACE": "ml",
    }
    assert labels_of(slurm, root=tmp_path) == {"owner": "ada", "account": "vision"}
    assert labels_of(slurm | POD, root=tmp_path)["namespace"] == "ml"
    assert labels_of({}, root=tmp_path) == {}


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
