"""Random numbers: an independent stream for each purpose, so that one dial moves nothing else."""

from __future__ import annotations

import zlib

import numpy as np


def stream(seed: int, *purpose: str | int) -> np.random.Generator:
    """Return the generator that belongs to `purpose` under `seed`."""
    words = [zlib.crc32(str(word).encode()) for word in purpose]
    return np.random.default_rng([seed, *words])
