// Computing of ranks against their peers over time, on a canvas; a cell is chosen by the mouse or with the keyboard.
import { heat, token } from '../colors.js';
import { age, times } from '../format.js';
import { here } from '../here.js';
import { every, line, overlay, rect, text } from '../svg.js';
import { COLUMNS, decoded, joined, lastMinute, none, picture, runs, zoomed } from './cells.js';

const MINUTE_MS = 60_000;
const NARROW = 720;
const LEFT = { narrow: 32, wide: 40 };
// Of the names of hosts and stages, where there is room for them.
const NAMES = 92;
const CHARACTER = 6.2;
const BOTTOM = 20;
const LEVELS = 500;
const FAR = 10;
const TICKS = 4;
// On a narrower plot, pixels, half of them have room.
const FEW_TICKS = 400;
const SHORT = 60;
const TALL = 15;
// Zoomed in, that many ranks and minutes are left at least.
const FEW = { ranks: 8, minutes: 15 };
const ZOOM = 2;
const WHEEL = 1.25;
// A finger that moves less chooses a cell.
const MOVED = 6;

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
    /** @type {{ line: number, minute: number } | null} a line from the top of all, and a minute */
    this.cell = same ? before.cell : null;
    /** @type {number | null} minutes across, where someone chose them */
    this.chosen = same ? before.chosen : null;
    /** @type {{ from: number, size: number } | null} lines that are shown; null: all */
    this.rows = same ? before.rows : null;
    /** @type {{ from: number, size: number } | null} minutes that are shown of those across; null: all */
    this.span = same ? before.span : null;
    this.began = { at: performance.now(), now: Date.parse(document.body.dataset.now) || Date.now() };
    this.canvas = document.createElement('canvas');
    element.replaceChildren(this.canvas);
    const options = { signal };
    element.addEventListener('keydown', (event) => this.key(event), options);
    element.addEventListener('focus', () => { if (!this.cell) this.choose(this.slowest()); }, options);
    element.addEventListener('dblclick', (event) => this.zoomAt(event, 1 / ZOOM), options);
    element.addEventListener('wheel', (event) => {
      // Without a key the page scrolls; a pinch on a trackpad comes as a wheel with Control.
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      this.zoomAt(event, event.deltaY < 0 ? 1 / WHEEL : WHEEL);
    }, { signal, passive: false });
    this.listen(options);
    if (this.cells.ranks.length) this.draw();
  }

  /** The mouse chooses what it is over, and moves what is zoomed in; two fingers zoom. */
  listen(options) {
    const { element } = this;
    const fingers = new Map();
    let apart = 0;
    let dragged = null;
    const distance = () => {
      const [a, b] = [...fingers.values()];
      return Math.hypot(a.clientX - b.clientX, a.clientY - b.clientY);
    };
    element.addEventListener('pointerdown', (event) => {
      fingers.set(event.pointerId, event);
      if (fingers.size === 2) apart = distance();
      dragged = fingers.size === 1 ? { x: event.clientX, y: event.clientY, moved: false, view: this.view() } : null;
    }, options);
    element.addEventListener('pointermove', (event) => {
      const down = fingers.has(event.pointerId);
      if (!down) {
        if (event.pointerType === 'mouse') this.point(event);
        return;
      }
      fingers.set(event.pointerId, event);
      if (fingers.size === 2) {
        const now = distance();
        const [a, b] = [...fingers.values()];
        if (apart && Math.abs(now / apart - 1) > 0.1) {
          this.zoomAt({ clientX: (a.clientX + b.clientX) / 2, clientY: (a.clientY + b.clientY) / 2 }, apart / now);
          apart = now;
        }
      } else if (dragged && this.isZoomed) {
        const [x, y] = [event.clientX - dragged.x, event.clientY - dragged.y];
        if (!dragged.moved && Math.hypot(x, y) < MOVED) return;
        if (!dragged.moved) element.setPointerCapture?.(event.pointerId);
        dragged.moved = true;
        this.move(dragged.view, x, y);
      }
    }, options);
    const up = (event) => {
      if (dragged && !dragged.moved && event.type === 'pointerup') this.point(event);
      fingers.delete(event.pointerId);
      if (!fingers.size) dragged = null;
    };
    for (const kind of ['pointerup', 'pointercancel', 'pointerleave']) element.addEventListener(kind, up, options);
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
      this.rows = null;
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

  get isZoomed() { return Boolean(this.rows || this.span); }

  /** What is shown: the lines, and the minutes, of which the first is `first`. */
  view() {
    const rows = this.rows ?? { from: 0, size: this.cells.lines.length };
    const span = this.span ?? { from: 0, size: this.columns };
    return { rows, span, first: this.last() - this.columns + 1 + span.from };
  }

  /** The ranks that are shown, as their indices. */
  get lines() {
    const { from, size } = this.view().rows;
    return this.cells.lines.slice(from, from + size);
  }

  draw() {
    const began = performance.now();
    const { element, canvas, cells } = this;
    const [width, height] = [element.clientWidth, element.clientHeight];
    const ratio = Math.max(1, devicePixelRatio || 1);
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    const names = innerWidth > NARROW && cells.lines.some((rank) => cells.hosts[rank] !== null) ? NAMES : 0;
    const left = (innerWidth <= NARROW ? LEFT.narrow : LEFT.wide) + names;
    this.geometry = { width, height, left, names, plotWidth: width - left, plotHeight: height - BOTTOM };
    const { plotWidth, plotHeight } = this.geometry;
    const context = canvas.getContext('2d');
    const [x, wide, high] = [Math.round(left * ratio), Math.round(plotWidth * ratio), Math.round(plotHeight * ratio)];
    this.hatch(context, x, wide, high, ratio);
    const { lines } = this;
    if (lines.length && wide > 0) {
      const { span, first } = this.view();
      const [across, down] = [Math.min(span.size, wide), Math.min(lines.length, high)];
      const colors = palette();
      const shown = new ImageData(across, down);
      const pixels = new Uint32Array(shown.data.buffer);
      const values = picture(cells, lines, first + span.size - 1, span.size, across, down);
      for (let at = 0; at < values.length; at++) if (values[at]) pixels[at] = colors[Math.min(LEVELS, Math.max(0, values[at] - 1000))];
      const small = new OffscreenCanvas(across, down);
      small.getContext('2d').putImageData(shown, 0, 0);
      context.imageSmoothingEnabled = false;
      context.drawImage(small, x, 0, wide, high);
    }
    this.write();
    element.classList.toggle('zoomed', this.isZoomed);
    element.dataset.drawn = String(cells.minutes.size);
    element.dataset.shown = `${lines.length} × ${this.view().span.size}`;
    element.dataset.drawnMs = (performance.now() - began).toFixed(1);
    element.dispatchEvent(new CustomEvent('drawn'));
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
    const { first, span } = this.view();
    return left + ((minute - first) * plotWidth) / span.size;
  }

  write() {
    const { width, height, left, plotWidth, plotHeight } = this.geometry;
    const { cells, lines } = this;
    const { rows, span, first } = this.view();
    const layer = overlay(this.element, width, height);
    const tall = plotHeight / Math.max(1, lines.length);
    for (let at = 0; at < lines.length; at += every(tall, 24)) layer.append(text(left - 6, Math.min(plotHeight, Math.max(9, at * tall + Math.min(tall, 16) / 2 + 4)), cells.ranks[lines[at]], { 'text-anchor': 'end' }));
    this.writeNames(layer, lines, tall);
    const ends = this.last() + 1;
    const ticks = plotWidth < FEW_TICKS ? TICKS / 2 : TICKS;
    for (let tick = 0; tick < ticks; tick++) layer.append(text(left + (plotWidth * tick) / ticks, height - 5, `${age((ends - first - (span.size * tick) / ticks) * 60)} ago`, { 'text-anchor': tick ? 'middle' : 'start' }));
    layer.append(text(width, height - 5, first + span.size >= ends ? 'now' : `${age((ends - first - span.size) * 60)} ago`, { 'text-anchor': 'end' }));
    let before = null;
    for (const minute of [...cells.attempts.keys()].sort((a, b) => a - b)) {
      const attempt = cells.attempts.get(minute);
      if (before !== null && attempt !== before && minute > first && minute < first + span.size) layer.append(line(this.across(minute), 0, this.across(minute), plotHeight, 'attempt'));
      before = attempt;
    }
    if (!this.cell) return;
    const column = plotWidth / span.size;
    const wide = Math.max(column, 4);
    const at = this.cell.line - rows.from;
    if (at >= 0 && at < lines.length && this.cell.minute >= first && this.cell.minute < first + span.size) layer.append(rect(this.across(this.cell.minute) + column / 2 - wide / 2 - 1, at * tall - 1, wide + 2, Math.max(tall, 4) + 2, 'at'));
    this.reading.textContent = this.words(this.cell);
  }

  /** Stages and hosts: a line where one begins, and its name where there is room. */
  writeNames(layer, lines, tall) {
    const { left, names, width, plotHeight } = this.geometry;
    const { stages, hosts } = this.cells;
    const name = (found, x, from, to, kind) => {
      const y = Math.max(9, from * tall + 11);
      if ((to - from) * tall >= TALL && y <= plotHeight) layer.append(text(x, y, found, { class: kind }));
    };
    const ofStages = runs(lines, (rank) => stages[rank]);
    const several = new Set(stages).size > 1;
    if (several) {
      for (const { name: stage, from, to } of ofStages) {
        if (from) layer.append(line(left, from * tall, width, from * tall, 'stage'));
        if (stage >= 0) name(`Stage ${stage}`, left + 6, from, to, 'stage');
      }
    }
    if (!names) return;
    // A host has ranks of several stages: its name stands in each.
    const ofHosts = runs(lines, (rank) => `${stages[rank]} ${hosts[rank] ?? ''}`);
    const room = Math.floor((names - 8) / CHARACTER);
    let free = 0;
    for (const { from, to } of ofHosts) {
      const host = hosts[lines[from]];
      if (host === null) continue;
      if (from && (to - from) * tall >= 4) layer.append(line(0, from * tall, left, from * tall, 'host'));
      // The names of hosts stand as close as they can be read.
      if (from * tall < free || from * tall + 11 > plotHeight) continue;
      free = from * tall + TALL;
      layer.append(text(0, from * tall + 11, host.length > room ? `…${host.slice(1 - room)}` : host, { class: 'host' }));
    }
  }

  words({ line: at, minute }) {
    const { ranks, stages, hosts, minutes, lines } = this.cells;
    const rank = lines[at];
    const place = JSON.parse(document.querySelector('[data-part=places]').textContent)[ranks[rank]] ?? hosts[rank];
    const stage = stages[rank] >= 0 && new Set(stages).size > 1 ? `stage ${stages[rank]}` : null;
    const value = minutes.get(minute)?.[rank];
    const when = globalThis.zone.words(minute * MINUTE_MS, 'short');
    return [`Rank ${ranks[rank]}`, place, stage, when, value ? `computes ${times(value / 1000)} as long as its peers` : 'no pulse'].filter(Boolean).join(' · ');
  }

  /** The slowest cell of the last minute. */
  slowest() {
    const minute = lastMinute(this.cells);
    const row = this.cells.minutes.get(minute);
    if (!row?.length) return null;
    const rank = row.indexOf(row.reduce((most, value) => Math.max(most, value), 0));
    return { line: this.cells.lines.indexOf(rank), minute };
  }

  /** Choose a cell; what is shown follows it. */
  choose(cell) {
    if (!cell) return;
    const last = this.last();
    this.cell = {
      line: Math.min(this.cells.lines.length - 1, Math.max(0, cell.line)),
      minute: Math.min(last, Math.max(last - this.columns + 1, cell.minute)),
    };
    const { rows, span, first } = this.view();
    const [above, below] = [this.cell.line - rows.from, this.cell.line - rows.from - rows.size + 1];
    const [before, after] = [this.cell.minute - first, this.cell.minute - first - span.size + 1];
    if (this.rows && (above < 0 || below > 0)) this.rows = { from: rows.from + (above < 0 ? above : below), size: rows.size };
    if (this.span && (before < 0 || after > 0)) this.span = { from: span.from + (before < 0 ? before : after), size: span.size };
    if (this.isZoomed) this.draw();
    else this.write();
  }

  /** The cell at a place of the page; null outside of the map. */
  at(event) {
    if (!this.geometry || !this.cells.lines.length) return null;
    const box = this.element.getBoundingClientRect();
    const { left, plotWidth, plotHeight } = this.geometry;
    const [x, y] = [event.clientX - box.left - left, event.clientY - box.top];
    if (x < 0 || y < 0 || x >= plotWidth || y >= plotHeight) return null;
    const { rows, span, first } = this.view();
    return { line: rows.from + Math.floor((y * rows.size) / plotHeight), minute: first + Math.floor((x * span.size) / plotWidth) };
  }

  point(event) {
    const cell = this.at(event);
    if (!cell) return;
    this.cell = cell;
    this.write();
  }

  zoomAt(event, factor) {
    const cell = this.at(event);
    if (cell) this.zoom(factor, cell);
  }

  /** Show fewer lines and minutes, or more, around a cell. */
  zoom(factor, cell = this.cell ?? this.slowest()) {
    if (!cell) return;
    const { rows, span } = this.view();
    const [all, columns] = [this.cells.lines.length, this.columns];
    const minute = cell.minute - (this.last() - columns + 1);
    const [down, across] = [zoomed(rows, cell.line, factor, FEW.ranks, all), zoomed(span, minute, factor, FEW.minutes, columns)];
    this.rows = down.size < all ? down : null;
    this.span = across.size < columns ? across : null;
    this.draw();
  }

  /** Move what is shown by pixels. */
  move({ rows, span }, x, y) {
    const { plotWidth, plotHeight } = this.geometry;
    const within = (from, size, whole) => Math.min(whole - size, Math.max(0, from));
    if (this.rows) this.rows = { from: within(rows.from - Math.round((y * rows.size) / plotHeight), rows.size, this.cells.lines.length), size: rows.size };
    if (this.span) this.span = { from: within(span.from - Math.round((x * span.size) / plotWidth), span.size, this.columns), size: span.size };
    this.draw();
  }

  /** Show all of it again. */
  whole() {
    this.rows = this.span = null;
    this.draw();
  }

  /** Choose how many minutes are across. */
  show(columns) {
    this.chosen = columns;
    this.span = null;
    if (this.cell) this.cell.minute = Math.max(this.cell.minute, this.last() - columns + 1);
    this.draw();
  }

  key(event) {
    const far = event.shiftKey ? FAR : 1;
    const cell = this.cell ?? this.slowest();
    if (!cell || event.ctrlKey || event.metaKey || event.altKey) return;
    const does = {
      ArrowLeft: () => this.choose({ ...cell, minute: cell.minute - far }),
      ArrowRight: () => this.choose({ ...cell, minute: cell.minute + far }),
      ArrowUp: () => this.choose({ ...cell, line: cell.line - far }),
      ArrowDown: () => this.choose({ ...cell, line: cell.line + far }),
      Home: () => this.choose({ ...cell, minute: -Infinity }),
      End: () => this.choose({ ...cell, minute: lastMinute(this.cells) }),
      '+': () => this.zoom(1 / ZOOM),
      '=': () => this.zoom(1 / ZOOM),
      '-': () => this.zoom(ZOOM),
      0: () => this.whole(),
    }[event.key];
    if (!does) return;
    event.preventDefault();
    does();
  }
}
