"""`paceline mitigate`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.command import paceline

SPEC = """\
times_s: [8, 1, 1, 1]
matmul_s: [7.6, 0.8, 0.8, 0.8]
columns: 1024
costs: {communicate: [[256, 0.03], [512, 0.05]]}
"""


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "group.yaml"
    path.write_text(SPEC)
    return path


def test_prints_what_to_do_the_alternatives_and_who_does_what(spec: Path) -> None:
    out = paceline("mitigate", spec).stdout
    assert out.startswith(
        "Rank 0, up to 8.00 × the fastest: sticky, 8 s → 1.238 s a step, 6.46 × as fast\n"
    )
    rows = [line.split() for line in out.splitlines()]
    assert ["ZERO", "T_avg", "2.753", "s", "2.91", "×", "0.690", "0", "beyond", "budget"] in rows
    assert ["0", "8", "s", "1.231", "s", "112", "0", "912", "0", "1:", "304,", "2:", "304,",
            "3:", "304"] in rows  # fmt: skip


def test_says_when_no_costs_were_sampled(spec: Path) -> None:
    spec.write_text("\n".join(SPEC.splitlines()[:3]))
    assert "No costs were sampled" in paceline("mitigate", spec).stdout


def test_leaves_a_group_without_stragglers_alone(spec: Path) -> None:
    spec.write_text("{times_s: [1.05, 1], matmul_s: [1, 1], columns: 8}")
    out = paceline("mitigate", spec).stdout
    assert out.startswith("No rank straggles: the slowest takes 1.05 × the fastest\n")
    assert "Kept" not in out


def test_json_is_the_document_alone(spec: Path) -> None:
    document = json.loads(paceline("mitigate", spec, "--json").stdout)
    assert document["schema"] == "paceline.mitigation/1"
    assert document["chosen"] == document["alternatives"][0]["method"] == "sticky"
    assert document["alternatives"][0]["ranks"][0]["to"] == {"1": 304, "2": 304, "3": 304}


def test_faults_have_their_places(spec: Path) -> None:
    spec.write_text(SPEC.replace("[8,", "[.nan,"))
    done = paceline("mitigate", spec)
    assert done.returncode == 1
    assert done.stdout == ""
    assert "(column times_s[0]) [not_finite]" in done.stderr


@pytest.mark.parametrize(
    ("content", "code"),
    [(b"\xff\xfe", "tensor.malformed"), (b"a: [", "tensor.malformed"), (b"[1]", "tensor.invalid")],
)
def test_files_that_are_none_of_ours(spec: Path, content: bytes, code: str) -> None:
    spec.write_bytes(content)
    done = paceline("mitigate", spec)
    assert done.returncode == 1
    assert f"[{code}]" in done.stderr
