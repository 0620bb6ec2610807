"""What a body may cost, and the bounds of values that are believed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MIB: Final = 1024 * 1024

# Bytes for a byte of a compressed body, above that many bytes.
MAX_RATIO: Final = 250
UNJUDGED_BYTES: Final = 32 * MIB

# Faults reported of one body.
MAX_FAULTS: Final = 10

# Ranks of a job; more is taken for a mistyped size.
MAX_WORLD: Final = 1 << 20
MAX_MODEL_CHUNKS: Final = 1 << 10
MAX_MICROBATCH: Final = 1 << 20
# Steps travel in JSON to browsers, whose integers are exact to here.
MAX_STEP: Final = (1 << 53) - 1
MAX_ORDER: Final = (1 << 31) - 2
# Any difference and any end of times within these bounds fits int64; 146 years.
MAX_TIME_NS: Final = 1 << 62

MAX_OP_NAME_CHARS: Final = 128
# Distinct names of operations in one trace.
MAX_OP_NAMES: Final = 256
# A dictionary may list names that no row uses (pandas writes its categories so).
MAX_DICTIONARY: Final = 16 * MAX_OP_NAMES

# A float32 of seconds resolves 0.2 ms here and 128 s at today's epoch.
MAX_RELATIVE_START_S: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Limits:
    """Upper bounds of one body."""

    # Bytes that the body, or the columns read from it, may decompress to.
    max_decompressed_bytes: int = 4096 * MIB
    max_rows: int = 40_000_000  # operations of one body
    # The header line of an NDJSON body, a metadata document, the footer of a Parquet body.
    max_header_bytes: int = 16 * MIB

    def expanded(self, size: int) -> int:
        """Return what a body may decompress to, bytes.

        Recorded text compresses to a tenth or a fortieth: what gives hundreds of bytes for one was
        made to. Small bodies are not judged, they cost little in any case.

        Parameters
        ----------
        size : int
            Bytes of the body as it came.
        """
        return min(self.max_decompressed_bytes, max(UNJUDGED_BYTES, MAX_RATIO * size))
