"""The output of the pulse's score."""

from __future__ import annotations

import re

import pytest

from benchmarks import pulse_score


@pytest.mark.slow
def test_the_last_line_sums_it_up(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["pulse_score", "--jobs", "27", "--steps", "300"])
    pulse_score.main()
    lines = capsys.readouterr().out.splitlines()

    assert len(lines) == 2 + len(pulse_score.KINDS) + 2 + 1
    assert re.fullmatch(
        r"slow 10 %: \d+ steps, slow 50 %: \d+ steps, right [\d.]+ %, false \d+ in \d+ rank-hours",
        lines[-1],
    )
