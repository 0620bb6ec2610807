// The cells of a map of ranks over time, minute by minute: what the server sends, and what a pixel of it shows.
const MINUTE_MS = 60_000;
/** Minutes that are kept. */
export const COLUMNS = 720;

/**
 * `lines` are the indices of ranks from the top down: stage by stage, in each by rank.
 * @typedef {{ ranks: number[], stages: number[], hosts: (string | null)[], lines: number[], leftOut: number, minutes: Map<number, Uint16Array>, attempts: Map<number, number> }} Cells
 */

/** @returns {Cells} */
export const none = () => ({ ranks: [], stages: [], hosts: [], lines: [], leftOut: 0, minutes: new Map(), attempts: new Map() });

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
  const lines = head.ranks.map((_, at) => at).sort((a, b) => head.stages[a] - head.stages[b] || a - b);
  const hosts = head.host_of.map((at) => head.hosts[at] ?? null);
  const found = { ...none(), ranks: head.ranks, stages: head.stages, hosts, lines, leftOut: head.left_out };
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
  // Who is where may have become known meanwhile.
  Object.assign(cells, { stages: newer.stages, hosts: newer.hosts, lines: newer.lines });
  return cells;
}

/** The last minute that there is; NaN without any. @param {Cells} cells */
export const lastMinute = (cells) => (cells.minutes.size ? Math.max(...cells.minutes.keys()) : NaN);

/**
 * Thousandths of a picture of that size in pixels, line by line; of cells that share a pixel the slowest, 0 without any.
 * @param {Cells} cells
 * @param {number[]} lines the ranks that are shown, as their indices
 * @param {number} last the minute at the right
 * @param {number} columns minutes across
 * @param {number} wide
 * @param {number} high
 */
export function picture(cells, lines, last, columns, wide, high) {
  const pixels = new Uint16Array(wide * high);
  const ranks = lines.length;
  const rows = Int32Array.from({ length: ranks }, (_, at) => Math.floor((at * high) / ranks) * wide);
  const whose = Int32Array.from(lines);
  for (let column = 0; column < columns; column++) {
    const row = cells.minutes.get(last - columns + 1 + column);
    if (!row) continue;
    const left = Math.floor((column * wide) / columns);
    for (let line = 0; line < ranks; line++) {
      const at = rows[line] + left;
      const value = row[whose[line]];
      if (value > pixels[at]) pixels[at] = value;
    }
  }
  return pixels;
}

/**
 * Lines that follow one another and have the same name, from the top down; null has none.
 * @template T
 * @param {number[]} lines
 * @param {(rank: number) => T} name
 * @returns {{ name: T, from: number, to: number }[]}
 */
export function runs(lines, name) {
  const found = [];
  lines.forEach((rank, at) => {
    const last = found[found.length - 1];
    if (last && last.name === name(rank)) last.to = at + 1;
    else found.push({ name: name(rank), from: at, to: at + 1 });
  });
  return found;
}

/**
 * A part of a length around a place of it, by a factor smaller or larger than it was, within bounds.
 * @param {{ from: number, size: number }} part
 * @param {number} place that stays where it is
 * @param {number} factor
 * @param {number} least
 * @param {number} whole
 */
export function zoomed({ from, size }, place, factor, least, whole) {
  const next = Math.min(whole, Math.max(Math.min(least, whole), Math.round(size * factor)));
  const share = size > 0 ? (place - from + 0.5) / size : 0.5;
  return { from: Math.round(Math.min(whole - next, Math.max(0, place + 0.5 - share * next))), size: next };
}
