from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from paceline_client.spool import Address, Spool, default_directory

HERE = Address("http://127.0.0.1:1", "llama", 3, "rank-0", run_id="17", restart=2)

CLAIM = """
import sys
from pathlib import Path
from paceline_client import Spool
spool = Spool(Path(sys.argv[1]))
with spool.claimed(spool.waiting()[0]) as claimed:
    print("claimed" if claimed else "taken", flush=True)
    sys.stdin.read()
"""


def test_a_share_waits_with_its_address_until_it_is_removed(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "new")
    path = spool.put(HERE, b"body\nof two lines")

    assert spool.waiting() == [path]
    with spool.claimed(path) as claimed:
        assert claimed == (HERE, b"body\nof two lines")
    spool.remove(path)
    assert spool.waiting() == []
    with spool.claimed(path) as claimed:
        assert claimed is None


def test_a_share_that_a_process_sends_is_free_again_when_that_process_is_killed(
    tmp_path: Path,
) -> None:
    spool = Spool(tmp_path)
    path = spool.put(HERE, b"body")
    sender = subprocess.Popen(  # noqa: S603 - this interpreter
        [sys.executable, "-c", CLAIM, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with sender:
        assert sender.stdout is not None
        assert sender.stdout.readline() == "claimed\n"
        with spool.claimed(path) as claimed:
            assert claimed is None
        sender.kill()
        sender.wait()
    with spool.claimed(path) as claimed:
        assert claimed == (HERE, b"body")


def test_the_oldest_shares_make_room(tmp_path: Path) -> None:
    spool = Spool(tmp_path, max_bytes=3_000)
    paths = [spool.put(HERE, bytes(1_000)) for _ in range(4)]

    assert spool.waiting() == paths[2:]


def test_a_file_that_is_no_share_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "0.share").write_bytes(b"not JSON\nbody")
    with Spool(tmp_path).claimed(tmp_path / "0.share") as claimed:
        assert claimed is None


def test_an_impossible_folder_raises_os_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"exists|directory"):
        Spool(tmp_path / "file").put(HERE, b"")


def test_the_folder_is_the_environments_or_one_of_this_user(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PACELINE_SPOOL", "/scratch/spool")
    assert default_directory() == Path("/scratch/spool")
    monkeypatch.delenv("PACELINE_SPOOL")
    assert default_directory().name.startswith("paceline-spool-")


def test_a_folder_that_others_can_write_to_is_not_used_but_one_of_its_own_inside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o1777)
    spool = Spool(tmp_path / "shared")

    path = spool.put(HERE, b"body")
    assert path.parent == tmp_path / "shared" / f"paceline-spool-{os.getuid()}"
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert path.stat().st_mode & 0o777 == 0o600
    assert "other users can write to it (mode 1777)" in caplog.text
    # Other processes of this user find it there.
    assert Spool(tmp_path / "shared").waiting() == [path]


def test_a_link_in_place_of_the_folder_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "elsewhere").mkdir()
    default_directory().symlink_to(tmp_path / "elsewhere")
    spool = Spool()

    path = spool.put(HERE, b"body")
    assert path.is_relative_to(tmp_path / "home" / ".cache")
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert "it is a link" in caplog.text


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder to another user")
def test_a_folder_that_another_user_made_first_is_neither_filled_nor_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    foreign = default_directory()
    Spool(foreign).put(HERE, b"forged")
    os.chown(foreign, 12345, 12345)
    spool = Spool()

    assert spool.waiting() == []
    assert spool.put(HERE, b"body").is_relative_to(tmp_path / "home" / ".cache")
    assert "it belongs to another user (12345)" in caplog.text


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder to another user")
def test_a_folder_that_changes_hands_later_is_no_longer_used(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool")
    spool.put(HERE, b"body")
    os.chown(spool.directory, 12345, 12345)

    assert spool.waiting() == []
    with pytest.raises(PermissionError, match="belongs to another user"):
        spool.put(HERE, b"body")


def test_only_files_of_this_user_that_no_other_can_write_to_are_sent(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool")
    path = spool.put(HERE, b"body")
    link = path.with_name("1.share")
    link.symlink_to(path)
    os.mkfifo(path.with_name("2.share"))
    spool.directory.chmod(0o755)
    writable = spool.put(HERE, b"body")
    writable.chmod(0o666)

    def is_sent(file: Path) -> bool:
        with spool.claimed(file) as claimed:
            return claimed is not None

    files = (path, link, path.with_name("2.share"), writable)
    assert [is_sent(file) for file in files] == [True, False, False, False]
    # In a folder that no other user can enter, the mode of a file does not matter.
    spool.directory.chmod(0o700)
    assert is_sent(writable)


@pytest.mark.parametrize(
    "header", [b"[" * 60_000, b'{"a":' * 10_000, b"9" * 60_000, b'{"server": 1, "extra": 2}', b"[]"]
)
def test_a_header_that_is_none_is_left_alone(tmp_path: Path, header: bytes) -> None:
    spool = Spool(tmp_path / "spool")
    path = spool.put(HERE, b"body")
    path.write_bytes(header + b"\nbody")
    with spool.claimed(path) as claimed:
        assert claimed is None
