// One iteration of a 1F1B pipeline on a canvas: a lane for each stage, with hatched bubbles.
import { niceTick, overlay, rect, text } from '../svg.js';

const LANE = 20;
const GAP = 4;
const AXIS = 28;
const NARROW = 720;
const KEY_ZOOM = 1.5;
const KEY_MOVE = 0.2;
const LEAST_DRAG_PX = 4;
const LEAST_SHARE = 1e-3;

export class Schedule {
  /** `data` has the starts of each direction by stage, in ms, and the durations of its stages. */
  constructor(element, data, { token, percent, seconds }, signal) {
    this.element = element;
    this.data = data;
    this.token = token;
    this.percent = percent;
    this.seconds = seconds;
    this.reading = document.getElementById('schedule-read');
    this.hint = this.reading.textContent;
    this.reset = /** @type {HTMLButtonElement} */ (document.getElementById('reset-zoom'));
    this.whole = [0, data.iteration_ms];
    this.view = [...this.whole];
    this.canvas = document.createElement('canvas');
    this.canvas.setAttribute('aria-hidden', 'true');
    element.append(this.canvas);
    const on = (target, name, run) => target.addEventListener(name, run, { signal });
    on(this.reset, 'click', () => this.zoom(this.whole));
    on(element, 'pointerdown', (event) => this.press(event));
    on(element, 'pointermove', (event) => this.move(event));
    on(element, 'pointerup', (event) => this.release(event));
    on(element, 'pointerleave', () => { this.reading.textContent = this.hint; });
    on(element, 'keydown', (event) => this.key(event));
    this.draw();
  }

  x(ms) { return this.left + ((ms - this.view[0]) / (this.view[1] - this.view[0])) * this.plot; }

  at(x) { return this.view[0] + ((x - this.left) / this.plot) * (this.view[1] - this.view[0]); }

  /** @param {number[]} range */
  zoom([low, high]) {
    const least = this.whole[1] * LEAST_SHARE;
    const span = Math.min(Math.max(high - low, least), this.whole[1]);
    const from = Math.min(Math.max(low, 0), this.whole[1] - span);
    this.view = [from, from + span];
    this.draw();
  }

  draw() {
    const { element, canvas, data } = this;
    const narrow = innerWidth <= NARROW;
    this.left = narrow ? 24 : 116;
    const right = narrow ? 8 : 76;
    const height = data.stages.length * (LANE + GAP) + AXIS;
    element.style.height = `${height}px`;
    const width = element.clientWidth;
    this.plot = width - this.left - right;
    this.reset.disabled = this.view[0] <= 0 && this.view[1] >= this.whole[1];
    const scale = devicePixelRatio || 1;
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    const pen = canvas.getContext('2d');
    pen.scale(scale, scale);
    const layer = overlay(element, width, height);
    data.stages.forEach((stage, number) => { this.lane(pen, layer, stage, number, { narrow, right, width }); });
    this.axis(layer, data.stages.length * (LANE + GAP), narrow);
    element.dataset.drawn = data.stages.length;
  }

  lane(pen, layer, stage, number, { narrow, right, width }) {
    const y = number * (LANE + GAP);
    // The lane is hatched and then covered by computations: the rest are bubbles.
    layer.append(text(narrow ? 4 : 0, y + 14, narrow ? String(number) : stage.name));
    if (right > 8) layer.append(text(width - right + 8, y + 14, `${this.percent(stage.idle)} idle`));
    this.hatch(pen, this.left, y, this.plot, LANE);
    pen.save();
    pen.beginPath();
    pen.rect(this.left, y, this.plot, LANE);
    pen.clip();
    for (const [direction, color] of [['forward', `--d${stage.color}`], ['backward', `--d${stage.color}b`]]) {
      const duration = stage[`${direction}_ms`];
      pen.fillStyle = this.token(color);
      for (const start of this.data.starts[direction][number]) {
        if (start > this.view[1]) break;
        if (start + duration < this.view[0]) continue;
        const from = this.x(start);
        const span = this.x(start + duration) - from;
        // A thin gap between consecutive computations, if there is room.
        const room = span > 3 ? 0.75 : 0;
        pen.clearRect(from, y, span, LANE);
        pen.fillRect(from, y, span - room, LANE);
      }
    }
    pen.restore();
  }

  hatch(pen, x, y, width, height) {
    pen.save();
    pen.beginPath();
    pen.rect(x, y, width, height);
    pen.clip();
    pen.strokeStyle = this.token('--hatch');
    pen.lineWidth = 0.75;
    pen.beginPath();
    for (let at = x - height; at < x + width; at += 5) {
      pen.moveTo(at, y + height);
      pen.lineTo(at + height, y);
    }
    pen.stroke();
    pen.strokeRect(x + 0.5, y + 0.5, width - 1, height - 1);
    pen.restore();
  }

  axis(layer, y, narrow) {
    const inSeconds = this.whole[1] >= 1000;
    const unit = inSeconds ? 1000 : 1;
    const [low, high] = this.view.map((ms) => ms / unit);
    const tick = niceTick(high - low, narrow ? 4 : 10);
    for (let at = Math.ceil(low / tick - 1e-9) * tick; at <= high * (1 + 1e-9); at += tick) {
      const anchor = this.x(at * unit) > this.left + this.plot - 16 ? 'end' : 'middle';
      layer.append(text(this.x(at * unit), y + 10, String(+at.toPrecision(6)), { 'text-anchor': anchor }));
    }
    layer.append(text(this.left + this.plot, y + 24, `${inSeconds ? 'seconds' : 'milliseconds'} since the iteration began`, { 'text-anchor': 'end' }));
  }

  place(event) {
    const box = this.element.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }

  press(event) {
    if (event.pointerType === 'touch') return;
    [this.from] = this.place(event);
    this.element.setPointerCapture(event.pointerId);
  }

  move(event) {
    const [x, y] = this.place(event);
    const layer = this.element.querySelector(':scope > .over');
    layer.querySelector('.zoom')?.remove();
    if (this.from !== undefined && Math.abs(x - this.from) > LEAST_DRAG_PX) {
      layer.append(rect(Math.min(x, this.from), 0, Math.abs(x - this.from), this.data.stages.length * (LANE + GAP), 'zoom'));
      return;
    }
    this.reading.textContent = this.say(this.at(x), Math.floor(y / (LANE + GAP))) ?? this.hint;
  }

  release(event) {
    const from = this.from;
    this.from = undefined;
    const [x] = this.place(event);
    if (from === undefined || Math.abs(x - from) <= LEAST_DRAG_PX) return;
    this.zoom([this.at(Math.min(x, from)), this.at(Math.max(x, from))]);
  }

  key(event) {
    const [low, high] = this.view;
    const span = high - low;
    const middle = (low + high) / 2;
    const views = {
      '+': [middle - span / KEY_ZOOM / 2, middle + span / KEY_ZOOM / 2],
      '=': [middle - span / KEY_ZOOM / 2, middle + span / KEY_ZOOM / 2],
      '-': [middle - (span * KEY_ZOOM) / 2, middle + (span * KEY_ZOOM) / 2],
      ArrowLeft: [low - span * KEY_MOVE, high - span * KEY_MOVE],
      ArrowRight: [low + span * KEY_MOVE, high + span * KEY_MOVE],
      Escape: this.whole,
    };
    if (!views[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    this.zoom(views[event.key]);
    this.reading.textContent = `Shown: ${this.seconds(this.view[0] / 1000)} to ${this.seconds(this.view[1] / 1000)}.`;
  }

  /** The operation of a stage at a time, as text. */
  say(ms, number) {
    const stage = this.data.stages[number];
    if (!stage || ms < 0 || ms > this.whole[1]) return null;
    for (const direction of ['forward', 'backward']) {
      const duration = stage[`${direction}_ms`];
      const at = this.data.starts[direction][number].findLastIndex((start) => start <= ms);
      if (at >= 0 && ms < this.data.starts[direction][number][at] + duration) {
        const start = this.data.starts[direction][number][at];
        return `Stage ${stage.name}: ${direction} of microbatch ${at}, ${this.seconds(duration / 1000)} from ${this.seconds(start / 1000)}`;
      }
    }
    return `Stage ${stage.name}: waits (bubble)`;
  }
}
