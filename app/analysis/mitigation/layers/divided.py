"""A division of the layers over the stages, as reports have it."""

from __future__ import annotations

from dataclasses import dataclass

ByChunk = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Division:
    """How the layers of the model are divided, and how they would be better.

    Parameters
    ----------
    today, layers : tuple of tuple of int
        Layers of each chunk of each stage, embedding and head not counted: as they are, and as is
        recommended.
    layer_ms : float
        What a layer takes of a microbatch, forward and backward together, ms.
    embedding_ms, head_ms : float
        The same of the embedding and of the head with the loss.
    proven : bool
        Whether no division is better for what stages lastingly take.
    max_layers : tuple of int or None
        The most layers that each stage can hold, as the metadata say; None where they do not.
    flag : str
        What tells Megatron-LM to divide the layers so.
    """

    today: ByChunk
    layers: ByChunk
    layer_ms: float
    embedding_ms: float
    head_ms: float
    proven: bool
    max_layers: tuple[int, ...] | None
    flag: str

    @property
    def text(self) -> str:
        """Return the division in a line."""
        return as_text(self.layers)


def as_text(layers: ByChunk) -> str:
    """Return a division as launchers and people write it.

    Examples
    --------
    >>> as_text(((20,), (21,), (21,), (18,)))
    '[20, 21, 21, 18]'
    >>> as_text(((5, 5), (6, 4)))
    '[[5, 5], [6, 4]]'
    """
    if all(len(chunks) == 1 for chunks in layers):
        return str([count for (count,) in layers])
    return str([list(chunks) for chunks in layers])
