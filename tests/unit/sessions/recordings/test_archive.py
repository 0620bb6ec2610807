from __future__ import annotations

import gzip
import io
import os
import resource
import stat
import struct
import tarfile
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from app.analysis.trace.limits import MIB, Limits
from app.errors import BodyTooLargeError, InvalidArchiveError
from app.sessions.recordings import archive
from app.sessions.recordings.archive import unpacked
from app.sessions.recordings.choose import archive_at
from tests.unit.sessions.recordings.archives import forms, member, tar, written, zipped

FILES = [("traces/rank0.json", b'{"a": 0}'), ("traces/deep/rank1.json", b'{"a": 1}' * 9000)]


def entries(path: Path, *, limits: Limits | None = None, nameless: bool = True) -> dict[str, bytes]:
    """Unpack an archive and return its files."""
    with unpacked(path, limits or Limits(), directory=path.parent, nameless=nameless) as files:
        return {one.name: one.path.read_bytes() for one in files}


def refusal(path: Path, limits: Limits | None = None) -> InvalidArchiveError:
    """Return the refusal of an archive, after checking that no file is left."""
    before = sorted(path.parent.iterdir())
    with pytest.raises(InvalidArchiveError) as refused:
        entries(path, limits=limits, nameless=False)
    assert sorted(path.parent.iterdir()) == before
    return refused.value


@pytest.mark.parametrize("nameless", [True, False])
@pytest.mark.parametrize("name", sorted(forms(FILES)))
def test_every_kind_of_archive_has_its_files(tmp_path: Path, name: str, *, nameless: bool) -> None:
    path = written(tmp_path, name, forms(FILES)[name])
    assert entries(path, nameless=nameless) == dict(FILES)
    assert list(tmp_path.iterdir()) == [path]


def test_a_recording_is_no_archive(tmp_path: Path) -> None:
    for content in (b"", b"{}", gzip.compress(b'{"a": 1}' * 999), bytes(4096), b"\x1f\x8bcut"):
        assert archive_at(written(tmp_path, "rank0.json.gz", content)) is None


def test_folders_and_hidden_files_are_not_kept(tmp_path: Path) -> None:
    body = tar(
        [
            member("traces", tarfile.DIRTYPE),
            ("./traces/rank0.json", b"{}"),
            ("traces/.DS_Store", b"x"),
            ("__MACOSX/traces/._rank0.json", b"x"),
            ("traces/truth.json", b"{}"),
            ("traces/meta.yaml", b"pp: 2"),
        ]
    )
    found = entries(written(tmp_path, "a.tar", body))
    assert found == {"traces/rank0.json": b"{}", "traces/meta.yaml": b"pp: 2"}


def test_names_of_windows_have_folders(tmp_path: Path) -> None:
    path = written(tmp_path, "a.zip", zipped([("traces\\rank0.json", b"{}")]))
    assert list(entries(path)) == ["traces/rank0.json"]


UNSAFE = ("../rank0.json", "traces/../../rank0.json", "/etc/rank0.json", "C:/rank0.json")


@pytest.mark.parametrize("name", UNSAFE)
@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_a_name_that_leads_out_is_refused_with_its_entry(
    tmp_path: Path, kind: str, name: str
) -> None:
    files = [("rank1.json", b"{}"), (name, b"{}")]
    error = refusal(written(tmp_path, "a", tar(files) if kind == "tar" else zipped(files)))
    assert error.stable_code == "archive.unsafe_name"
    [fault] = error.faults
    assert (fault.row, fault.file) == (1, name)
    assert "(entry 1)" in error.message


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (tarfile.SYMTYPE, "link"),
        (tarfile.LNKTYPE, "link"),
        (tarfile.CHRTYPE, "device"),
        (tarfile.BLKTYPE, "device"),
        (tarfile.FIFOTYPE, "device"),
        (b"Z", "unsupported"),
    ],
)
def test_an_entry_that_is_no_file_is_refused(tmp_path: Path, kind: bytes, code: str) -> None:
    body = tar([("rank1.json", b"{}"), member("rank0.json", kind, "/etc/passwd")])
    error = refusal(written(tmp_path, "a.tar", body))
    assert error.stable_code == f"archive.{code}"
    assert error.message.startswith("rank0.json: ")


@pytest.mark.parametrize(("mode", "code"), [(stat.S_IFLNK, "link"), (stat.S_IFIFO, "device")])
def test_a_zip_entry_that_is_no_file_is_refused(tmp_path: Path, mode: int, code: str) -> None:
    info = zipfile.ZipInfo("rank0.json")
    info.external_attr = (mode | 0o644) << 16
    error = refusal(written(tmp_path, "a.zip", zipped([(info, b"/etc/passwd")])))
    assert error.stable_code == f"archive.{code}"


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("again", ["rank0.json", "./rank0.json"])
@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_a_name_that_comes_twice_is_refused(tmp_path: Path, kind: str, again: str) -> None:
    files = [("rank0.json", b"{}"), (again, b"[]")]
    error = refusal(written(tmp_path, "a", tar(files) if kind == "tar" else zipped(files)))
    assert error.stable_code == "archive.duplicate_name"


def test_an_encrypted_zip_is_refused(tmp_path: Path) -> None:
    body = bytearray(zipped([("rank0.json", b"{}")]))
    directory = body.find(b"PK\x01\x02")
    body[6] |= 1
    body[directory + 8] |= 1
    error = refusal(written(tmp_path, "a.zip", bytes(body)))
    assert error.stable_code == "archive.encrypted"


def test_a_zip_of_another_compression_is_refused(tmp_path: Path) -> None:
    body = io.BytesIO()
    with zipfile.ZipFile(body, "w", zipfile.ZIP_LZMA) as out:
        out.writestr("rank0.json", b"{}")
    assert refusal(written(tmp_path, "a.zip", body.getvalue())).stable_code == "archive.unsupported"


@pytest.mark.parametrize(
    "magic", [b"BZh91AY", b"\xfd7zXZ\x00", b"7z\xbc\xaf\x27\x1c", b"Rar!\x1a\x07"]
)
def test_another_kind_of_archive_is_refused_by_name(tmp_path: Path, magic: bytes) -> None:
    error = refusal(written(tmp_path, "a", magic + bytes(600)))
    assert error.stable_code == "archive.unsupported"
    assert ".tar.zst" in error.message


@pytest.mark.parametrize("kind", sorted(forms(FILES)))
def test_an_archive_that_is_cut_off_is_refused_wherever_that_is(tmp_path: Path, kind: str) -> None:
    # More than a block of zstd, in whose first one a file is recognized.
    size = 585 * 512
    whole = forms([("rank0.json", os.urandom(900)), ("rank1.json", os.urandom(size))])[kind]
    # The padding after the end of a tar archive is no part of its content.
    least = 512 + 1024 + 512 + size if kind == "traces.tar" else len(whole) - 1
    cuts = [
        written(tmp_path, f"{n}", whole[:n]) for n in (600, 1000, least // 2, least - 512, least)
    ]
    recognized = [path for path in cuts if archive_at(path) is not None]
    assert {f"{least // 2}", f"{least}"} <= {path.name for path in recognized}
    assert {refusal(path).stable_code for path in recognized} == {"archive.truncated"}


def test_damaged_bytes_are_refused(tmp_path: Path) -> None:
    plain = bytearray(tar([("rank0.json", b"{}"), ("rank1.json", b"{}"), ("rank2.json", b"{}")]))
    plain[1024 + 5] ^= 0xFF
    assert refusal(written(tmp_path, "a.tar", bytes(plain))).stable_code == "archive.corrupt"

    body = bytearray(zipped([("rank0.json", os.urandom(500))]))
    body[100] ^= 0xFF
    error = refusal(written(tmp_path, "a.zip", bytes(body)))
    assert (error.stable_code, error.faults[0].file) == ("archive.corrupt", "rank0.json")


def gigabyte(compress: Callable[[bytes], bytes]) -> bytes:
    """Return a tar archive of a gigabyte of zeros, in members of 16 MB."""
    info = tarfile.TarInfo("rank0.json")
    info.size = 1024 * MIB
    return compress(info.tobuf()) + 64 * compress(bytes(16 * MIB))


@pytest.mark.parametrize(
    "body",
    [
        gigabyte(gzip.compress),
        gigabyte(zstandard.compress),
        zipped([("rank0.json", bytes(99 * MIB))]),
    ],
    ids=["gzip", "zstd", "zip"],
)
def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path: Path, body: bytes) -> None:
    path = written(tmp_path, "bomb", body)
    tracemalloc.start()
    try:
        error = refusal(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert error.stable_code == "archive.bomb"
    # A compressed block becomes 16 MB, which the decompressor holds twice.
    assert peak < 80 * MIB


def test_an_archive_that_unpacks_beyond_the_limit_is_refused(tmp_path: Path) -> None:
    for name, body in forms(
        [("rank0.json", os.urandom(3000)), ("x.bin", os.urandom(3000))]
    ).items():
        path = written(tmp_path, name, body)
        with pytest.raises(BodyTooLargeError) as refused:
            entries(path, limits=Limits(max_decompressed_bytes=5000))
        assert refused.value.stable_code == "body.too_large"


def test_too_many_entries_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MAX_ENTRIES", 3)
    for name, body in forms([(f"rank{rank}.json", b"{}") for rank in range(4)]).items():
        error = refusal(written(tmp_path, name, body))
        assert error.stable_code == "archive.too_many_entries"


def test_a_long_directory_of_a_zip_is_not_read(tmp_path: Path) -> None:
    body = bytearray(zipped([("rank0.json", b"{}")]))
    end = body.rfind(b"PK\x05\x06")
    struct.pack_into("<L", body, end + 12, 5 * MIB)
    error = refusal(written(tmp_path, "a.zip", bytes(body)))
    assert error.stable_code == "archive.too_many_entries"


def test_a_zip_as_large_ones_are_is_read(tmp_path: Path) -> None:
    body = io.BytesIO()
    with (
        zipfile.ZipFile(body, "w", zipfile.ZIP_DEFLATED) as out,
        out.open("rank0.json", "w", force_zip64=True) as file,
    ):
        file.write(b"{}")
    assert entries(written(tmp_path, "a.zip", body.getvalue())) == {"rank0.json": b"{}"}


def test_an_extended_header_is_not_taken_into_memory(tmp_path: Path) -> None:
    info = tarfile.TarInfo("rank0.json")
    info.pax_headers = {"comment": "x" * (3 * MIB)}
    error = refusal(written(tmp_path, "a.tar", tar([info])))
    assert error.stable_code == "archive.bomb"


def test_a_sparse_file_is_refused(tmp_path: Path) -> None:
    info = member("rank0.json", tarfile.GNUTYPE_SPARSE)
    assert refusal(written(tmp_path, "a.tar", tar([info]))).stable_code == "archive.unsupported"


def test_files_with_names_are_open_while_they_are_written_alone(tmp_path: Path) -> None:
    path = tmp_path / "many.tar"
    with tarfile.open(path, "w") as archive:
        for number in range(300):
            archive.addfile(tarfile.TarInfo(f"rank{number}.json"), io.BytesIO())
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(one.name) for one in Path("/dev/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 20, hard))
    try:
        assert len(entries(path, nameless=False)) == 300
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_nameless_files_are_gone_with_the_process(tmp_path: Path) -> None:
    path = written(tmp_path, "a.tar", tar(FILES))
    place = tmp_path / "spool"
    place.mkdir()
    with unpacked(path, Limits(), directory=place, nameless=True) as files:
        assert len(files) == 2
        assert list(place.iterdir()) == []
