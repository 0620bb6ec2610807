"""The choice of PostgreSQL's programs, and their copy for another account."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from app.errors import StartupError
from app.platform.embedded.binaries import bundled, inspect, readable_copy
from app.platform.embedded.server import EmbeddedPostgres
from tests.support.embedded import only_root


def test_a_directory_without_postgresql_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="There is no PostgreSQL in"):
        EmbeddedPostgres(tmp_path / "data", bin_dir=tmp_path).start()


@only_root
def test_programs_are_copied_once_to_where_every_account_can_run_them(open_dir: Path) -> None:
    install_dir = open_dir / "programs"
    copied = readable_copy(bundled(), install_dir)
    assert inspect(copied.bin_dir).major == copied.major == bundled().major
    unreadable = [
        path
        for path in install_dir.rglob("*")
        if path.stat().st_uid != 0 or not path.stat().st_mode & stat.S_IROTH
    ]
    assert unreadable == []
    written = copied.program("postgres").stat().st_mtime_ns
    assert readable_copy(bundled(), install_dir) == copied
    assert copied.program("postgres").stat().st_mtime_ns == written
