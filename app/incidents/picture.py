"""The heatmap of a session as a PNG, drawn without a browser.

The scale is the dashboard's fixed scale, 1.0 to 1.5, so that pictures are comparable.
"""

from __future__ import annotations

import io
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from app.incidents.text import clip

SCALE_LOW: Final = 1.0
SCALE_HIGH: Final = 1.5

# Colors of the dashboard's light theme, for 1.00 to 1.50 in steps of 0.05.
STOPS: Final = (
    (0xDF, 0xE2, 0xE7),
    (0xE3, 0xD5, 0xB1),
    (0xE2, 0xC3, 0x7E),
    (0xE3, 0xAD, 0x4D),
    (0xE1, 0x93, 0x1E),
    (0xD9, 0x7A, 0x06),
    (0xCD, 0x60, 0x06),
    (0xC0, 0x42, 0x03),
    (0xA8, 0x2D, 0x13),
    (0x8A, 0x1F, 0x1B),
    (0x6B, 0x13, 0x1B),
)
MISSING: Final = (0x8A, 0x93, 0xA5)
INK: Final = (0x1F, 0x24, 0x30)
PAPER: Final = (0xFF, 0xFF, 0xFF)

# Limits in pixels of the picture's size. Cells are whole pixels; a map with more cells than pixels
# is reduced.
MAX_WIDTH: Final = 560
MAX_HEIGHT: Final = 320
MAX_CELL: Final = 40
MARGIN: Final = 16
LEFT: Final = 56
TOP: Final = 44
BOTTOM: Final = 66
MIN_WIDTH: Final = 420
MAX_TITLE: Final = 90
LEGEND_WIDTH: Final = 180
LEGEND_HEIGHT: Final = 10


def heatmap_png(slowdowns: NDArray[np.float32], title: str) -> bytes:
    """Return the heatmap of worker slowdowns as a PNG image.

    Parameters
    ----------
    slowdowns : float array, shape (dp, pp)
        NaN where a worker has no data.
    title : str
        Title of the picture, cut if it does not fit.

    Returns
    -------
    bytes
        A PNG with a palette of 256 colors: a few kilobytes, because messages have to be small.
    """
    # Rows are pipeline stages and columns are DP ranks, as on the dashboard.
    cells = slowdowns.T.astype(np.float64)
    # In a reduced map each cell is the maximum of the cells that it replaces.
    for axis, limit in ((0, MAX_HEIGHT), (1, MAX_WIDTH)):
        length = cells.shape[axis]
        if length > limit:
            starts = np.arange(limit) * length // limit
            cells = np.fmax.reduceat(cells, starts, axis=axis)
    rows, columns = cells.shape
    size = max(1, min(MAX_CELL, MAX_WIDTH // columns, MAX_HEIGHT // rows))
    width = max(MIN_WIDTH, LEFT + columns * size + MARGIN)
    image = Image.new("RGB", (width, TOP + rows * size + BOTTOM), PAPER)
    pixels = np.repeat(np.repeat(_colors(cells), size, axis=0), size, axis=1)
    image.paste(Image.fromarray(pixels), (LEFT, TOP))
    _write(image, slowdowns.shape, (rows * size, columns * size), title)
    buffer = io.BytesIO()
    image.quantize(256, dither=Image.Dither.NONE).save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def _write(image: Image.Image, workers: tuple[int, ...], size: tuple[int, int], title: str) -> None:
    draw = ImageDraw.Draw(image)
    large, small = ImageFont.load_default(15), ImageFont.load_default(12)
    height, width = size
    dp, pp = workers
    draw.text((MARGIN, 12), _fitting(draw, title, image.width - 2 * MARGIN, large), INK, large)
    draw.text((LEFT, TOP + height + 4), "DP 0", INK, small)
    if dp > 1:
        draw.text((LEFT + width, TOP + height + 4), str(dp - 1), INK, small, anchor="ra")
    draw.text((LEFT - 6, TOP), "PP 0", INK, small, anchor="ra")
    if pp > 1:
        draw.text((LEFT - 6, TOP + height), str(pp - 1), INK, small, anchor="rd")
    top = image.height - MARGIN - LEGEND_HEIGHT
    ramp = np.linspace(SCALE_LOW, SCALE_HIGH, LEGEND_WIDTH)[None, :].repeat(LEGEND_HEIGHT, axis=0)
    draw.text((LEFT, top - 18), "slowdown of the job by this worker alone", INK, small)
    image.paste(Image.fromarray(_colors(ramp)), (LEFT, top))
    draw.text((LEFT - 6, top - 2), f"{SCALE_LOW:.1f}", INK, small, anchor="ra")
    draw.text((LEFT + LEGEND_WIDTH + 6, top - 2), f"{SCALE_HIGH:.1f} or more", INK, small)
    missing = LEFT + LEGEND_WIDTH + 96
    draw.rectangle((missing, top, missing + LEGEND_HEIGHT, top + LEGEND_HEIGHT - 1), MISSING)
    draw.text((missing + LEGEND_HEIGHT + 6, top - 2), "no data", INK, small)


def _fitting(
    draw: ImageDraw.ImageDraw,
    text: str,
    width: int,
    font: ImageFont.FreeTypeFont | ImageFont.ImageFont,
) -> str:
    for limit in range(min(len(text), MAX_TITLE), 1, -1):
        cut = clip(text, limit)
        if draw.textlength(cut, font) <= width:
            return cut
    return ""


def _colors(values: NDArray[np.float64]) -> NDArray[np.uint8]:
    has_data = np.isfinite(values)
    share = np.clip(
        (np.where(has_data, values, SCALE_LOW) - SCALE_LOW) / (SCALE_HIGH - SCALE_LOW), 0, 1
    )
    stops = np.array(STOPS, dtype=np.float64)
    at = share * (len(stops) - 1)
    colors = np.stack(
        [np.interp(at, np.arange(len(stops)), stops[:, channel]) for channel in range(3)], axis=-1
    )
    colors[~has_data] = MISSING
    return np.rint(colors).astype(np.uint8)
