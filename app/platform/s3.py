"""Objects in a bucket that speaks S3, by `obstore`; imported only if one is configured.

The library repeats a request that fails because of a connection or with a server's error status,
also each part of a multipart upload. An interrupted upload leaves no object: a store shows an
object only once it is complete.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Final
from urllib.parse import urlsplit

from app.errors import LostBytesError, ObjectStoreError, StartupError
from app.platform.object_store import ListedObject
from app.platform.settings import Settings

try:
    import obstore
    from obstore.exceptions import BaseError
    from obstore.store import S3Store
except ImportError as error:
    raise StartupError(
        "PACELINE_BLOB_URL needs the extra `s3`: pip install 'paceline[server,s3]'"
    ) from error

# Size of a part of a multipart upload, and the number of parts that are sent, and held in memory,
# at a time.
PART_BYTES: Final = 8 * 1024 * 1024
PARTS_AT_ONCE: Final = 3

# Limit of a request: a page may wait for an object within its transaction, which the database ends
# after a minute.
REQUEST_TIMEOUT: Final = timedelta(seconds=20)
CONNECT_TIMEOUT: Final = timedelta(seconds=5)
RETRY_FOR: Final = timedelta(seconds=30)
RETRIES: Final = 4


class S3Objects:
    """A bucket, or the part of it below a prefix, as an `ObjectStore`.

    Parameters
    ----------
    settings : Settings
        `blob_url` names bucket and prefix; unset credentials and region come from the common
        variables of the environment (``AWS_ACCESS_KEY_ID``…), or from the machine.

    Raises
    ------
    StartupError
        If the address is not an S3 address.
    """

    def __init__(self, settings: Settings) -> None:
        address = urlsplit(settings.blob_url or "")
        if address.scheme != "s3" or not address.netloc or address.query:
            raise StartupError("PACELINE_BLOB_URL is not of the form s3://bucket/prefix")
        given = {
            "endpoint": settings.blob_endpoint,
            "region": settings.blob_region,
            "access_key_id": settings.blob_access_key_id,
            "secret_access_key": settings.blob_secret_access_key
            and settings.blob_secret_access_key.get_secret_value(),
        }
        self._store = S3Store(
            address.netloc,
            prefix=address.path.strip("/") or None,
            config={name: value for name, value in given.items() if value},  # type: ignore[arg-type]
            client_options={
                "timeout": REQUEST_TIMEOUT,
                "connect_timeout": CONNECT_TIMEOUT,
                "allow_http": (settings.blob_endpoint or "").startswith("http://"),
            },
            retry_config={
                "max_retries": RETRIES,
                "retry_timeout": RETRY_FOR,
                "backoff": {
                    "init_backoff": timedelta(milliseconds=100),
                    "max_backoff": timedelta(seconds=5),
                    "base": 2,
                },
            },
        )

    def write(self, key: str, pieces: Iterable[bytes]) -> int:
        """Write an object as `ObjectStore.write` does."""
        size = 0

        def counted() -> Iterator[bytes]:
            nonlocal size
            for piece in pieces:
                size += len(piece)
                yield piece

        rest = counted()
        head = b"".join(_until(rest, PART_BYTES))
        with _answering():
            if len(head) < PART_BYTES:
                # Content that fits into one part takes one request; a multipart upload takes three.
                obstore.put(self._store, key, head, use_multipart=False)
            else:
                obstore.put(
                    self._store,
                    key,
                    itertools.chain((head,), rest),
                    use_multipart=True,
                    chunk_size=PART_BYTES,
                    max_concurrency=PARTS_AT_ONCE,
                )
            # The size is checked because a store may confirm an upload and hold fewer bytes.
            stored = obstore.head(self._store, key)["size"]
        if stored != size:
            raise ObjectStoreError(f"The object store kept {stored} of {size} bytes.")
        return size

    def read(self, key: str, size: int) -> Iterator[bytes]:
        """Read an object as `ObjectStore.read` does, in ranges with retries."""
        for start in range(0, size, PART_BYTES):
            length = min(PART_BYTES, size - start)
            with _answering():
                try:
                    piece = bytes(obstore.get_range(self._store, key, start=start, length=length))
                except FileNotFoundError as error:
                    raise LostBytesError(f"The object store has lost {key}.") from error
            if len(piece) != length:
                raise LostBytesError(f"The object store has {key} only in part.")
            yield piece

    def pages(self, after: str | None = None) -> Iterator[Sequence[ListedObject]]:
        """List objects as `ObjectStore.pages` does."""
        with _answering():
            listing = obstore.list(self._store, offset=after, chunk_size=1000)
        while True:
            with _answering():
                page = next(listing, None)
            if page is None:
                return
            yield [
                ListedObject(listed["path"], listed["size"], listed["last_modified"])
                for listed in page
            ]

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects as `ObjectStore.delete` does."""
        if keys:
            with _answering():
                obstore.delete(self._store, list(keys))


def _until(pieces: Iterator[bytes], size: int) -> Iterator[bytes]:
    """Yield pieces until they have `size` bytes together, or end."""
    while size > 0 and (piece := next(pieces, None)) is not None:
        size -= len(piece)
        yield piece


@contextlib.contextmanager
def _answering() -> Iterator[None]:
    try:
        yield
    except (BaseError, PermissionError, TimeoutError) as error:
        # The first line of the error; the other lines are details of the library.
        said = str(error).partition("\n")[0]
        raise ObjectStoreError(f"The object store does not answer: {said}") from error
