from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from app.cli.demo.run import default_demo_dir, open_place, settings_of_demo
from app.errors import InstanceRunningError, StartupError
from app.platform.embedded.cluster import take_instance_lock
from app.platform.settings import Settings, default_data_dir
from tests.support.command import paceline

if TYPE_CHECKING:
    from pathlib import Path

UNTIL = datetime(2026, 11, 24, 8, tzinfo=UTC)


def there(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def with_data(directory: Path) -> Path:
    """Return a directory with a database."""
    (directory / "postgresql").mkdir(parents=True)
    (directory / "postgresql" / "PG_VERSION").write_text("17\n")
    return directory


def test_the_demo_has_a_directory_of_its_own_whoever_runs_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for uid in (0, 1000):
        monkeypatch.setattr("os.geteuid", lambda uid=uid: uid)
        monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
        own, others = default_demo_dir(), default_data_dir()
        assert own != others
        assert others not in own.parents
        assert own not in others.parents


def test_settings_of_a_real_installation_are_ignored_and_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PACELINE_DATABASE_URL", "postgresql+psycopg://real/real")
    monkeypatch.setenv("PACELINE_BROKER_URL", "redis://real")
    monkeypatch.setenv("PACELINE_BLOB_URL", "s3://real")
    monkeypatch.setenv("PACELINE_DATA_DIR", str(tmp_path / "real"))
    monkeypatch.setenv("PACELINE_PORT", "9000")
    own, left_alone = settings_of_demo(Settings(), None)
    assert (own.database_url, own.broker_url, own.blob_url) == (None, None, None)
    assert own.data_dir == default_demo_dir()
    assert own.port == 9000
    assert left_alone == [
        *("PACELINE_DATABASE_URL", "PACELINE_BROKER_URL", "PACELINE_DATA_DIR"),
        "PACELINE_BLOB_URL",
    ]
    child = own.environment_of_child({"PACELINE_BROKER_URL": "redis://real", "PATH": "/bin"})
    assert "PACELINE_BROKER_URL" not in child
    assert child["PATH"] == "/bin"


def test_the_data_of_an_installation_are_not_taken_for_the_demo(tmp_path: Path) -> None:
    data = with_data(tmp_path / "real")
    for fresh in ((), ("--fresh",)):
        done = paceline("demo", "--data-dir", data, *fresh)
        assert done.returncode != 0
        assert "holds the data of an installation" in done.stderr
        assert there(data) == {"postgresql"}


def test_the_data_of_the_demo_are_not_served_as_an_installation(tmp_path: Path) -> None:
    open_place(tmp_path / "demo", fresh=False)
    done = paceline("serve", "--data-dir", tmp_path / "demo")
    assert done.returncode != 0
    assert "holds the data of the demo" in done.stderr


def test_a_whole_history_goes_on_and_part_of_one_begins_anew(tmp_path: Path) -> None:
    demo = tmp_path / "demo"
    place = open_place(demo, fresh=False)
    assert place.history_end is None
    with_data(demo)
    assert "postgresql" not in there(open_place(demo, fresh=False).directory)
    with_data(demo)
    place.mark_end(UNTIL)
    again = open_place(demo, fresh=False)
    assert again.history_end == UNTIL
    assert "postgresql" in there(demo)
    assert open_place(demo, fresh=True).history_end is None
    assert "postgresql" not in there(demo)


def test_a_demo_that_runs_is_not_emptied(tmp_path: Path) -> None:
    demo = tmp_path / "demo"
    place = open_place(demo, fresh=False)
    place.mark_end(UNTIL)
    with_data(demo)
    take_instance_lock(demo)
    with pytest.raises(InstanceRunningError):
        open_place(demo, fresh=True)
    assert place.history_end == UNTIL
    assert "postgresql" in there(demo)


def test_an_unreadable_mark_is_reported(tmp_path: Path) -> None:
    demo = tmp_path / "demo"
    open_place(demo, fresh=False)
    (demo / "demo.json").write_text("[]")
    with pytest.raises(StartupError, match=r"Cannot read .*demo\.json"):
        open_place(demo, fresh=False)
