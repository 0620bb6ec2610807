// The cells of a map of ranks over time, minute by minute: what the server sends, and what a pixel of it shows.
const MINUTE_MS = 60_000;
/** Minutes that are kept. */
export const COLUMNS = 720;

/**
 * @typedef {{ ranks: number[], leftOut: number, minutes: Map<number, Uint16Array>, attempts: Map<number, number> }} Cells
 */

/** @returns {Cells} */
export const none = () => ({ ranks: [], leftOut: 0, minutes: new Map(), attempts: new Map() });

/**
 * What the server sends: a line of JSON, then thousandths, minute by minute.
 * @param {ArrayBuffer} body
 * @returns {Cells}
 */
export function decoded(body) {
  const bytes = new Uint8Array(body);
  const end = bytes.indexOf(10);
  const head = JSON.parse(new TextDecoder().decode(bytes.subarray(0, end)));
  const wide = head.ranks.length;
  // A view needs an even place; all machines that browsers run on are little-endian.
  const all = new Uint16Array(body.slice(end + 1));
  const found = { ...none(), ranks: head.ranks, leftOut: head.left_out };
  head.starts.forEach((start, at) => {
    const minute = Math.floor(Date.parse(start) / MINUTE_MS);
    const cells = all.subarray(at * wide, (at + 1) * wide);
    const before = found.minutes.get(minute);
    // Two attempts may share a minute: the slower one shows.
    found.minutes.set(minute, before ? cells.map((value, rank) => Math.max(value, before[rank])) : cells);
    found.attempts.set(minute, head.attempts[at]);
  });
  return found;
}

/**
 * Cells with newer ones in their place; null where these are of other ranks.
 * @param {Cells} cells
 * @param {Cells} newer
 */
export function joined(cells, newer) {
  if (newer.minutes.size === 0) return cells;
  if (newer.ranks.length !== cells.ranks.length || newer.ranks.some((rank, at) => rank !== cells.ranks[at])) return null;
  for (const [minute, row] of newer.minutes) cells.minutes.set(minute, row);
  for (const [minute, attempt] of newer.attempts) cells.attempts.set(minute, attempt);
  return cells;
}

/** The last minute that there is; NaN without any. @param {Cells} cells */
export const lastMinute = (cells) => (cells.minutes.size ? Math.max(...cells.minutes.keys()) : NaN);

/**
 * Thousandths of a picture of that size in pixels, line by line; of cells that share a pixel the slowest, 0 without any.
 * @param {Cells} cells
 * @param {number} last the minute at the right
 * @param {number} columns minutes across
 * @param {number} wide
 * @param {number} high
 */
export function picture(cells, last, columns, wide, high) {
  const pixels = new Uint16Array(wide * high);
  const ranks = cells.ranks.length;
  const rows = Int32Array.from({ length: ranks }, (_, rank) => Math.floor((rank * high) / ranks) * wide);
  for (let column = 0; column < columns; column++) {
    const row = cells.minutes.get(last - columns + 1 + column);
    if (!row) continue;
    const left = Math.floor((column * wide) / columns);
    for (let rank = 0; rank < ranks; rank++) {
      const at = rows[rank] + left;
      if (row[rank] > pixels[at]) pixels[at] = row[rank];
    }
  }
  return pixels;
}
