"""A broker made of files, for the embedded mode: kombu's filesystem transport, with atomic steps.

kombu's own writes a message into the file that consumers already see, and one that is read half
written ends the worker; and it takes messages by way of the system's shared temporary directory.
Here a message appears, and is taken, by a rename within the broker's directory.
"""

from __future__ import annotations

import time
import uuid
from pathlib import Path
from queue import Empty
from typing import Any, Final

from kombu.transport import filesystem
from kombu.utils.json import dumps, loads

SUFFIX: Final = ".msg"


class Channel(filesystem.Channel):
    """Messages are files ``<time>_<uuid>.<queue>.msg`` in ``data_folder_in``."""

    def _put(self, queue: str, payload: dict[str, Any], **_: object) -> None:  # type: ignore[override]  # the stubs name it in two ways
        # Names sort by the time of the message; that is the order in which they are taken.
        name = f"{time.time_ns():020d}_{uuid.uuid4()}.{queue}"
        written = Path(self.data_folder_in) / f"{name}.new"
        written.write_bytes(dumps(payload).encode())
        written.rename(written.with_name(name + SUFFIX))

    def _get(self, queue: str, timeout: float | None = None) -> Any:  # noqa: ANN401, ARG002 - kombu's signature
        for waiting in sorted(Path(self.data_folder_in).glob(f"*.{queue}{SUFFIX}")):
            taken = waiting.with_suffix(".taken")
            try:
                waiting.rename(taken)
            except FileNotFoundError:
                continue  # Another worker was faster.
            message = loads(taken.read_bytes())
            taken.unlink()
            return message
        raise Empty


class Transport(filesystem.Transport):
    """The transport behind `app.broker.celery.FILES_URL`."""

    Channel = Channel
