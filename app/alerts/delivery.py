"""One attempt of a delivery and its outcome: the types that senders and their callers share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# Of a receiver's answer so much is kept, for the page and the test button.
KEPT_CHARACTERS: Final = 500


@dataclass(frozen=True, slots=True)
class ReceiverAnswer:
    """What a receiver said."""

    status: int | None  # of HTTP or SMTP
    text: str  # the beginning of its answer


class DeliveryError(Exception):
    """An attempt that did not come through.

    Parameters
    ----------
    code : str
        Stable and machine-readable: ``http.status``, ``timeout``, ``address.refused``…
    sentence : str
        For a person; holds no secret.
    permanent : bool
        Whether the same message would fail again whenever it is sent.
    disable : bool
        Whether the channel is gone for good.
    answer : ReceiverAnswer or None
        What the receiver said, where it said something.
    retry_after_s : float or None
        How long it wants to be left alone.
    """

    def __init__(  # noqa: PLR0913 - each says one thing about the failure
        self,
        code: str,
        sentence: str,
        *,
        permanent: bool = False,
        disable: bool = False,
        answer: ReceiverAnswer | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(sentence)
        self.code = code
        self.sentence = sentence
        self.permanent = permanent or disable
        self.disable = disable
        self.answer = answer
        self.retry_after_s = retry_after_s


def excerpt(data: bytes | str) -> str:
    """Return the beginning of an answer as text that can be stored and shown."""
    text = data.decode("utf-8", "replace") if isinstance(data, bytes) else data
    shown = "".join(sign if sign.isprintable() or sign == "\n" else "�" for sign in text)
    return shown[:KEPT_CHARACTERS].strip()
