"""The result of a probe, from the output of its processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from paceline_client.probe import ProbeError, devices, without_waits

if TYPE_CHECKING:
    from pathlib import Path


def line(measuring: str | None = None, error: str | None = None) -> dict[str, Any]:
    said = {"measuring": measuring, "error": error}
    return {key: value for key, value in said.items() if value is not None}


def test_who_waited_for_a_device_that_failed_alone_has_not_failed() -> None:
    alone = line("matmul_tflops", "CUDA error: uncorrectable ECC error")
    waited = line("all_reduce_gbs", "timed out")
    never_began = line(error="it stands still")
    for failed in (alone, never_began):
        assert without_waits([waited, failed, waited]) == [
            line("all_reduce_gbs"),
            failed,
            line("all_reduce_gbs"),
        ]


def test_devices_that_fail_only_together_have_all_failed() -> None:
    lines = [line("all_reduce_gbs", "timed out"), line("all_reduce_gbs", "it stands still")]
    assert without_waits(lines) == lines
    assert without_waits([line("all_reduce_gbs")]) == [line("all_reduce_gbs")]


def test_processors_are_not_probed_instead_of_gpus_that_pytorch_does_not_see(
    tmp_path: Path,
) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("PyTorch sees GPUs here")
    assert devices(tmp_path / "none") == (False, 2)
    for address in ("0000:18:00.0", "0000:2a:00.0"):
        (tmp_path / address).mkdir()
    with pytest.raises(ProbeError, match="sees none of this machine's 2 GPUs"):
        devices(tmp_path)
