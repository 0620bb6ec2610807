// Computing of ranks against their peers over time, on a canvas; a cell is chosen by the mouse or with the keyboard.
import { heat, token } from '../colors.js';
import { age, times } from '../format.js';
import { here } from '../here.js';
import { every, line, overlay, rect, text } from '../svg.js';
import { COLUMNS, decoded, joined, lastMinute, none, picture } from './cells.js';

const MINUTE_MS = 60_000;
const NARROW = 720;
const LEFT = 40;
const BOTTOM = 20;
const LEVELS = 500;
const FAR = 10;
const TICKS = 4;
const SHORT = 60;

/** Colors of thousandths above 1.0 in the current theme, as pixels of a picture. */
function palette() {
  const colors = Uint8ClampedArray.from(Array.from({ length: LEVELS + 1 }, (_, at) => [...heat(1 + at / 1000), 255]).flat());
  return new Uint32Array(colors.buffer);
}

export class PulseMap {
  /** `before` is the map that the page had: its cells and its choice stay. */
  constructor(element, reading, before, signal) {
    this.element = element;
    this.reading = reading;
    this.signal = signal;
    const same = before?.address === element.dataset.address;
    this.address = element.dataset.address;
    this.cells = same ? before.cells : none();
    /** @type {{ rank: number, minute: number } | null} place of a rank, and a minute */
    this.cell = same ? before.cell : null;
    /** @type {number | null} minutes across, where someone chose them */
    this.chosen = same ? before.chosen : null;
    this.began = { at: performance.now(), now: Date.parse(document.body.dataset.now) || Date.now() };
    this.canvas = document.createElement('canvas');
    element.replaceChildren(this.canvas);
    const options = { signal };
    element.addEventListener('keydown', (event) => this.key(event), options);
    element.addEventListener('mousemove', (event) => this.point(event), options);
    element.addEventListener('click', (event) => this.point(event), options);
    element.addEventListener('focus', () => { if (!this.cell) this.choose(this.slowest()); }, options);
    if (this.cells.ranks.length) this.draw();
  }

  /** Fetch what is new. */
  async look() {
    const last = lastMinute(this.cells);
    // The last minute still grows.
    const from = Number.isNaN(last) ? '' : `?from=${encodeURIComponent(new Date(last * MINUTE_MS).toISOString())}`;
    const response = await fetch(here(this.address + from), { signal: this.signal });
    if (!response.ok) return;
    const found = decoded(await response.arrayBuffer());
    const cells = from ? joined(this.cells, found) : found;
    if (!cells) {
      // Other ranks: all of it anew.
      this.cells = none();
      await this.look();
      return;
    }
    this.cells = cells;
    for (const minute of cells.minutes.keys()) if (minute <= this.last() - COLUMNS) cells.minutes.delete(minute);
    this.draw();
  }

  /** The minute at the right: that of now by the server's clock, as far as minutes are there. */
  last() {
    const now = Math.floor((this.began.now + performance.now() - this.began.at) / MINUTE_MS);
    const last = lastMinute(this.cells);
    return Number.isNaN(last) ? now : Math.max(now, last);
  }

  /** Minutes across: those that were chosen, else an hour where that is all there is. */
  get columns() {
    if (this.chosen) return this.chosen;
    const first = Math.min(...this.cells.minutes.keys());
    return this.last() - first < SHORT ? SHORT : COLUMNS;
  }

  draw() {
    const began = performance.now();
    const { element, canvas, cells } = this;
    const [width, height] = [element.clientWidth, element.clientHeight];
    const ratio = Math.max(1, devicePixelRatio || 1);
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    const left = innerWidth <= NARROW ? 32 : LEFT;
    this.geometry = { width, height, left, plotWidth: width - left, plotHeight: height - BOTTOM };
    const { plotWidth, plotHeight } = this.geometry;
    const context = canvas.getContext('2d');
    const [x, wide, high] = [Math.round(left * ratio), Math.round(plotWidth * ratio), Math.round(plotHeight * ratio)];
    this.hatch(context, x, wide, high, ratio);
    if (cells.ranks.length && wide > 0) {
      const [across, down] = [Math.min(this.columns, wide), Math.min(cells.ranks.length, high)];
      const colors = palette();
      const shown = new ImageData(across, down);
      const pixels = new Uint32Array(shown.data.buffer);
      const values = picture(cells, this.last(), this.columns, across, down);
      for (let at = 0; at < values.length; at++) if (values[at]) pixels[at] = colors[Math.min(LEVELS, Math.max(0, values[at] - 1000))];
      const small = new OffscreenCanvas(across, down);
      small.getContext('2d').putImageData(shown, 0, 0);
      context.imageSmoothingEnabled = false;
      context.drawImage(small, x, 0, wide, high);
    }
    this.write();
    element.dataset.drawn = String(cells.minutes.size);
    element.dataset.drawnMs = (performance.now() - began).toFixed(1);
  }

  /** What is missing is hatched. */
  hatch(context, x, wide, high, ratio) {
    const apart = 6 * ratio;
    context.save();
    context.beginPath();
    context.rect(x, 0, wide, high);
    context.clip();
    context.lineWidth = ratio;
    context.strokeStyle = token('--hatch');
    context.globalAlpha = 0.6;
    context.beginPath();
    for (let at = x - high; at < x + wide; at += apart) {
      context.moveTo(at, high);
      context.lineTo(at + high, 0);
    }
    context.stroke();
    context.restore();
  }

  across(minute) {
    const { left, plotWidth } = this.geometry;
    return left + ((minute - this.last() + this.columns - 1) * plotWidth) / this.columns;
  }

  write() {
    const { width, height, left, plotWidth, plotHeight } = this.geometry;
    const { ranks, attempts } = this.cells;
    const layer = overlay(this.element, width, height);
    const tall = plotHeight / Math.max(1, ranks.length);
    for (let at = 0; at < ranks.length; at += every(tall, 24)) layer.append(text(left - 6, Math.min(plotHeight, Math.max(9, at * tall + Math.min(tall, 16) / 2 + 4)), ranks[at], { 'text-anchor': 'end' }));
    for (let tick = 0; tick < TICKS; tick++) layer.append(text(left + (plotWidth * tick) / TICKS, height - 5, `${age((this.columns * 60 * (TICKS - tick)) / TICKS)} ago`, { 'text-anchor': tick ? 'middle' : 'start' }));
    layer.append(text(width, height - 5, 'now', { 'text-anchor': 'end' }));
    let before = null;
    for (const minute of [...attempts.keys()].sort((a, b) => a - b)) {
      const attempt = attempts.get(minute);
      if (before !== null && attempt !== before && minute > this.last() - this.columns) layer.append(line(this.across(minute), 0, this.across(minute), plotHeight, 'attempt'));
      before = attempt;
    }
    if (!this.cell) return;
    const column = plotWidth / this.columns;
    const wide = Math.max(column, 4);
    layer.append(rect(this.across(this.cell.minute) + column / 2 - wide / 2 - 1, this.cell.rank * tall - 1, wide + 2, Math.max(tall, 4) + 2, 'at'));
    this.reading.textContent = this.words(this.cell);
  }

  words({ rank, minute }) {
    const { ranks, minutes } = this.cells;
    const place = JSON.parse(document.querySelector('[data-part=places]').textContent)[ranks[rank]];
    const value = minutes.get(minute)?.[rank];
    const when = globalThis.zone.words(minute * MINUTE_MS, 'short');
    return [`Rank ${ranks[rank]}`, place, when, value ? `computes ${times(value / 1000)} as long as its peers` : 'no pulse'].filter(Boolean).join(' · ');
  }

  /** The slowest cell of the last minute. */
  slowest() {
    const minute = lastMinute(this.cells);
    const row = this.cells.minutes.get(minute);
    if (!row?.length) return null;
    return { rank: row.indexOf(row.reduce((most, value) => Math.max(most, value), 0)), minute };
  }

  choose(cell) {
    if (!cell) return;
    const last = this.last();
    this.cell = {
      rank: Math.min(this.cells.ranks.length - 1, Math.max(0, cell.rank)),
      minute: Math.min(last, Math.max(last - this.columns + 1, cell.minute)),
    };
    this.write();
  }

  point(event) {
    if (!this.geometry || !this.cells.ranks.length) return;
    const box = this.element.getBoundingClientRect();
    const { left, plotWidth, plotHeight } = this.geometry;
    const [x, y] = [event.clientX - box.left - left, event.clientY - box.top];
    if (x < 0 || y >= plotHeight) return;
    this.choose({
      rank: Math.floor((y * this.cells.ranks.length) / plotHeight),
      minute: this.last() - this.columns + 1 + Math.floor((x * this.columns) / plotWidth),
    });
  }

  /** Choose how many minutes are across. */
  show(columns) {
    this.chosen = columns;
    if (this.cell) this.cell.minute = Math.max(this.cell.minute, this.last() - columns + 1);
    this.draw();
  }

  key(event) {
    const far = event.shiftKey ? FAR : 1;
    const cell = this.cell ?? this.slowest();
    if (!cell || event.ctrlKey || event.metaKey || event.altKey) return;
    const to = {
      ArrowLeft: { ...cell, minute: cell.minute - far },
      ArrowRight: { ...cell, minute: cell.minute + far },
      ArrowUp: { ...cell, rank: cell.rank - far },
      ArrowDown: { ...cell, rank: cell.rank + far },
      Home: { ...cell, minute: -Infinity },
      End: { ...cell, minute: lastMinute(this.cells) },
    }[event.key];
    if (!to) return;
    event.preventDefault();
    this.choose(to);
  }
}
