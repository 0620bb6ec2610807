"""Objects in a bucket that speaks S3, by `obstore`; imported only if one is configured.

A request that fails for want of a connection, or with a status of the server's own, is sent again
by the library, and so is each part of what is large. What is broken off is not there: a store shows
an object only once it is complete.
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

# Of what is written in parts; this number of parts is under way, and in memory, at the same time.
PART_BYTES: Final = 8 * 1024 * 1024
PARTS_AT_ONCE: Final = 3

# A page may wait for an object in its transaction, which the database ends after a minute.
REQUEST_TIMEOUT: Final = timedelta(seconds=20)
CONNECT_TIMEOUT: Final = timedelta(seconds=5)
RETRY_FOR: Final = timedelta(seconds=30)
RETRIES: Final = 4


class S3Objects:
    """A bucket, or what is below a prefix in it.

    Parameters
    ----------
    settings : Settings
        `blob_url` names bucket and prefix; credentials and region that are not set come from the
        environment as for other programs (``AWS_ACCESS_KEY_ID``…), or from the machine.

    Raises
    ------
    StartupError
        If the address is none of S3.
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
        """As `ObjectStore.write`."""
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
                # One request instead of three.
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
            # What says that it has them, and has others, must not be believed later.
            there = obstore.head(self._store, key)["size"]
        if there != size:
            raise ObjectStoreError(f"The object store kept {there} of {size} bytes.")
        return size

    def read(self, key: str, size: int) -> Iterator[bytes]:
        """As `ObjectStore.read`: range after range, each with retries."""
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
        """As `ObjectStore.pages`."""
        with _answering():
            listing = obstore.list(self._store, offset=after, chunk_size=1000)
        while True:
            with _answering():
                page = next(listing, None)
            if page is None:
                return
            yield [
                ListedObject(found["path"], found["size"], found["last_modified"]) for found in page
            ]

    def delete(self, keys: Sequence[str]) -> None:
        """As `ObjectStore.delete`."""
        if keys:
            with _answering():
                obstore.delete(self._store, list(keys))


def _until(pieces: Iterator[bytes], size: int) -> Iterator[bytes]:
    """Yield pieces until they are `size` bytes, or there are no more."""
    while size > 0 and (piece := next(pieces, None)) is not None:
        size -= len(piece)
        yield piece


@contextlib.contextmanager
def _answering() -> Iterator[None]:
    try:
        yield
    except (BaseError, PermissionError, TimeoutError) as error:
        # Its first line: what follows is for those who write the library.
        said = str(error).partition("\n")[0]
        raise ObjectStoreError(f"The object store does not answer: {said}") from error
