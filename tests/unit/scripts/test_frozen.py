"""Snapshots contain nothing that varies, and their differences are listed."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from scripts.frozen import Normalizer, differences

SESSION = "7f0c6f0e-55b5-4d53-9d0e-0d3c2f6e8a11"
OTHERS = [str(uuid.UUID(int=number, version=4)) for number in (7, 3)]


@pytest.fixture
def normalize() -> Normalizer:
    return Normalizer({SESSION.replace("-", ""): "{session}", "/tmp/a1b2": "FOLDER"})  # noqa: S108 - a text


def test_an_id_gets_its_name_however_it_is_written(normalize: Normalizer) -> None:
    short = SESSION.replace("-", "")
    assert normalize(f"/sessions/{SESSION} msg_{short}") == "/sessions/{session} msg_{session}"


def test_other_ids_are_numbered_in_the_order_of_the_text(normalize: Normalizer) -> None:
    first, second = OTHERS
    assert normalize(f"{first} {second} {first}") == "ID-1 ID-2 ID-1"


def test_texts_of_the_machine_and_digests_vary(normalize: Normalizer) -> None:
    assert normalize("/tmp/a1b2/data") == "FOLDER/data"  # noqa: S108 - a text
    assert normalize("/static/0123456789abcdef/js/a.js") == "/static/DIGEST/js/a.js"
    assert normalize(f"sha {'a1' * 32}.") == "sha SHA256."
    assert normalize("http://127.0.0.1:40123/hook") == "http://127.0.0.1:PORT/hook"
    assert normalize("<code>plc_rAhQ…</code>") == "<code>plc_TOKEN…</code>"


@pytest.mark.parametrize(
    "content",
    [
        "2026-03-02T09:04:00Z, 31 min ago",
        "1.0037794117647059",
        "0123456789abcdef",
        "revised in 2026",
        "step 1772442348079844096",
    ],
)
def test_numbers_and_times_stay(normalize: Normalizer, content: str) -> None:
    assert normalize(content) == content


def test_every_file_that_differs_is_listed(tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    for root, files in (
        (before, {"same.txt": "a\n", "changed.txt": "a\nb\n", "gone.txt": "a\n"}),
        (after, {"same.txt": "a\n", "changed.txt": "a\nc\n", "new.txt": "a\n"}),
    ):
        (root / "deep").mkdir(parents=True)
        for name, content in files.items():
            (root / "deep" / name).write_text(content)
    changed, gone, new = differences(before, after)
    assert changed.startswith("deep/changed.txt: changed\n")
    assert changed.endswith("-b\n+c")
    assert (gone, new) == ("deep/gone.txt: gone", "deep/new.txt: new")
