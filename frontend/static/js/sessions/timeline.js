// One step, recorded above ideal on one time axis: operations on a canvas, text as SVG on top.
import { heat, token } from '../colors.js';
import { seconds, times } from '../format.js';
import { line, niceTick, overlay, rect, svg, text } from '../svg.js';

const NARROW = 720;
const TOP = 24;
const GAP = 32;
const BOTTOM = 40;
const LEFT = 64;
const NS = 1e9;
const FORWARD = new Set(['forward-compute']);
const BACKWARD = new Set(['backward-compute', 'backward-wgrad-compute']);
const HIDDEN = new Set(['forward-send', 'forward-recv', 'backward-send', 'backward-recv']);
const QUIET = new Set(['optimizer', 'gc']);
// A shorter drag, in pixels, is a click.
const DRAG = 5;

/** The height, before the data are loaded, so that the page does not jump. */
export function timelineHeight(ranks, stages) {
  const lane = laneHeight(ranks, stages);
  return TOP + ranks * stages * lane + (ranks - 1) * 8 + GAP + stages * lane + BOTTOM;
}

const laneHeight = (ranks, stages) => (ranks * stages > 12 ? 14 : 18);

export class Timeline {
  constructor(element, reading, stages, ranks) {
    this.element = element;
    this.reading = reading;
    this.hint = reading.textContent;
    this.stages = stages;
    this.canvas = document.createElement('canvas');
    this.data = null;
    this.chosen = null;
    this.drag = null;
    element.replaceChildren(this.canvas);
    this.reserve(ranks);
    this.listen();
  }

  reserve(ranks) {
    this.element.style.height = `${timelineHeight(ranks, this.stages)}px`;
  }

  show(data) {
    this.data = data;
    this.chosen = null;
    this.end = Math.max(data.recorded_s, data.ideal_s) * NS * 1.005;
    this.view = [0, this.end];
    this.lanes = this.layOut(data);
    this.reading.textContent = this.hint;
    this.draw();
  }

  /** Lanes from top to bottom, each with its operations in order of start. */
  layOut(data) {
    const lanes = [];
    const collect = (columns, kind) => {
      const found = new Map();
      columns.dp.forEach((dp, at) => {
        const key = `${dp} ${columns.pp[at]}`;
        if (!found.has(key)) found.set(key, { kind, dp, pp: columns.pp[at], ops: [] });
        const name = data.op_names[columns.op[at]];
        if (HIDDEN.has(name)) return;
        const computes = FORWARD.has(name) || BACKWARD.has(name);
        // A collective is drawn for its transfer, without the wait for other ranks.
        const start = computes || QUIET.has(name) ? columns.start_ns[at] : columns.begin_ns[at];
        found.get(key).ops.push({
          name, start, end: columns.end_ns[at], launch: columns.start_ns[at], mb: columns.mb[at], ratio: columns.ratio[at],
          half: FORWARD.has(name) ? 'upper' : BACKWARD.has(name) ? 'lower' : null,
        });
      });
      return [...found.values()].sort((a, b) => a.dp - b.dp || a.pp - b.pp);
    };
    const recorded = collect(data.recorded, 'recorded');
    const ideal = collect(data.ideal, 'ideal');
    this.laneHeight = laneHeight(new Set(recorded.map((lane) => lane.dp)).size, this.stages);
    let y = TOP;
    let last = null;
    for (const lane of recorded) {
      if (last !== null && lane.dp !== last) y += 8;
      lanes.push({ ...lane, y, first: lane.dp !== last });
      last = lane.dp;
      y += this.laneHeight;
    }
    this.recordedEnd = y;
    y += GAP;
    this.idealStart = y;
    ideal.forEach((lane, index) => {
      lanes.push({ ...lane, y, first: index === 0 });
      y += this.laneHeight;
    });
    this.bottom = y;
    for (const lane of lanes) lane.ops.sort((a, b) => a.start - b.start);
    return lanes;
  }

  x(time) { return this.left + ((time - this.view[0]) / (this.view[1] - this.view[0])) * this.plotWidth; }

  time(x) { return this.view[0] + ((x - this.left) / this.plotWidth) * (this.view[1] - this.view[0]); }

  draw() {
    if (!this.data) return;
    const narrow = innerWidth <= NARROW;
    this.left = narrow ? 48 : LEFT;
    const width = this.element.clientWidth;
    const height = this.bottom + BOTTOM;
    this.element.style.height = `${height}px`;
    this.plotWidth = width - this.left - (narrow ? 8 : 16);
    const ratio = Math.max(1, devicePixelRatio || 1);
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    const context = this.canvas.getContext('2d');
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    context.save();
    context.beginPath();
    context.rect(this.left, 0, this.plotWidth + 1, height);
    context.clip();
    this.drawRules(context, narrow);
    for (const lane of this.lanes) this.drawLane(context, lane);
    context.restore();
    this.write(width, height, narrow);
    this.element.dataset.drawn = String(this.data.step);
  }

  /** Ticks at round numbers of seconds. */
  ticks(narrow) {
    const [from, to] = this.view.map((time) => time / NS);
    const tick = niceTick(to - from, narrow ? 4 : 10);
    const first = Math.ceil(from / tick);
    return Array.from({ length: Math.floor(to / tick) - first + 1 }, (_, at) => (first + at) * tick);
  }

  drawRules(context, narrow) {
    context.fillStyle = token('--line');
    for (const value of this.ticks(narrow)) context.fillRect(Math.round(this.x(value * NS)), TOP - 4, 1, this.bottom - TOP + 6);
  }

  drawLane(context, lane) {
    const full = this.laneHeight - 2;
    const half = Math.floor(full / 2);
    const [from, to] = this.view;
    const total = (lane.kind === 'ideal' ? this.data.ideal_s : this.data.recorded_s) * NS;
    context.fillStyle = token('--line');
    context.fillRect(this.x(0), lane.y + full, this.x(total) - this.x(0), 1);
    const fill = (op, color, y, h) => {
      const start = this.x(op.start);
      const span = this.x(op.end) - start;
      context.fillStyle = color;
      context.fillRect(start, y, Math.max(0.6, span - (span > 3 ? 0.7 : 0.2)), h);
    };
    const visible = lane.ops.filter((op) => op.end >= from && op.start <= to);
    // Computations are drawn over collectives at the same time.
    for (const op of visible) if (!op.half) fill(op, token(QUIET.has(op.name) ? '--line-strong' : '--mark'), lane.y, full);
    for (const op of visible) {
      if (!op.half) continue;
      const color = op.ratio === null ? token('--n300') : `rgb(${heat(op.ratio)})`;
      if (op.half === 'upper') fill(op, color, lane.y, half);
      else fill(op, color, lane.y + half, full - half);
    }
  }

  write(width, height, narrow) {
    const layer = overlay(this.element, width, height);
    const right = this.left + this.plotWidth;
    for (const value of this.ticks(narrow)) {
      layer.append(text(this.x(value * NS), this.bottom + 16, String(+value.toFixed(6)), { 'text-anchor': 'middle' }));
    }
    layer.append(text(right, height - 6, 'seconds since the step began', { 'text-anchor': 'end' }));
    for (const lane of this.lanes) {
      const y = lane.y + this.laneHeight / 2 + 3;
      layer.append(text(this.left - 8, y, lane.pp, { 'text-anchor': 'end' }));
      if (lane.first) layer.append(lane.kind === 'ideal' ? text(0, y, 'Stage') : text(0, y, `DP ${lane.dp}`, { class: 'strong' }));
    }
    const { recorded_s: recorded, ideal_s: ideal } = this.data;
    layer.append(
      text(this.left, 12, `Recorded: ${seconds(recorded)}`, { class: 'strong' }),
      text(this.left, this.idealStart - 10, `Ideal: ${seconds(ideal)}${narrow ? '' : ', the same for every DP rank'}`, { class: 'strong' }),
    );
    const xIdeal = this.x(ideal * NS);
    const xRecorded = this.x(recorded * NS);
    const inside = (x) => x >= this.left - 1 && x <= right + 1;
    if (inside(xIdeal)) layer.append(line(xIdeal, this.idealStart - 4, xIdeal, this.bottom, 'edge'));
    if (inside(xRecorded)) layer.append(line(xRecorded, TOP - 4, xRecorded, this.bottom, 'edge'));
    if (inside(xIdeal) && inside(xRecorded) && xRecorded - xIdeal > 24) {
      const y = (this.idealStart + this.bottom) / 2;
      layer.append(
        line(xIdeal + 4, y, xRecorded - 4, y, 'lost'),
        svg('path', { class: 'lost', d: `M${xRecorded - 9} ${y - 3}L${xRecorded - 4} ${y}L${xRecorded - 9} ${y + 3}M${xIdeal + 9} ${y - 3}L${xIdeal + 4} ${y}L${xIdeal + 9} ${y + 3}` }),
      );
      if (xRecorded - xIdeal > 72) layer.append(text((xIdeal + xRecorded) / 2, y - 6, `${seconds(recorded - ideal)} lost`, { class: 'strong', 'text-anchor': 'middle' }));
    }
    if (this.chosen) {
      const { lane, op } = this.chosen;
      const x = Math.max(this.left, this.x(op.start));
      const end = Math.min(right, this.x(op.end));
      if (end >= x) layer.append(rect(x - 1.5, lane.y - 1.5, Math.max(2, end - x) + 3, this.laneHeight + 1, 'pick'));
    }
    if (this.drag?.moved) {
      const start = Math.min(this.drag.from, this.drag.to);
      layer.append(rect(start, TOP - 4, Math.abs(this.drag.to - this.drag.from), this.bottom - TOP + 4, 'zoom'));
    }
  }

  zoom(from, to) {
    const least = this.end / 5000;
    const span = Math.min(this.end, Math.max(least, to - from));
    const start = Math.min(Math.max(0, from), this.end - span);
    this.view = [start, start + span];
    this.draw();
  }

  reset() {
    if (!this.data) return;
    this.view = [0, this.end];
    this.draw();
  }

  at(x, y) {
    const lane = this.lanes?.find((one) => y >= one.y && y < one.y + this.laneHeight);
    if (!lane || x < this.left) return null;
    const time = this.time(x);
    const slack = (this.view[1] - this.view[0]) / this.plotWidth;
    const hits = lane.ops.filter((op) => time >= op.start - slack && time <= op.end + slack);
    const half = y < lane.y + this.laneHeight / 2 ? 'upper' : 'lower';
    const op = hits.find((one) => one.half === half) ?? hits.find((one) => one.half) ?? hits[0];
    return op ? { lane, op } : null;
  }

  say(found) {
    if (!found) return;
    const { lane, op } = found;
    const parts = [`${lane.kind}, ${lane.kind === 'ideal' ? 'every DP rank' : `DP ${lane.dp}`}, stage ${lane.pp}`];
    if (op.mb >= 0) parts.push(`microbatch ${op.mb}`);
    parts.push(`starts ${seconds(op.start / NS)}`, `takes ${seconds((op.end - op.start) / NS)}`);
    if (op.start - op.launch > 1e5) parts.push(`after waiting ${seconds((op.start - op.launch) / NS)}`);
    if (op.ratio !== null && lane.kind === 'recorded') parts.push(`${times(op.ratio)} ideal`);
    const name = document.createElement('b');
    name.textContent = op.name;
    this.reading.replaceChildren(name, ` · ${parts.join(' · ')}`);
  }

  choose(lane, op) {
    this.chosen = { lane, op };
    const [from, to] = this.view;
    if (op.start < from || op.end > to) {
      const middle = (op.start + op.end) / 2;
      this.zoom(middle - (to - from) / 2, middle + (to - from) / 2);
    } else this.draw();
    this.say(this.chosen);
  }

  listen() {
    const { element } = this;
    const place = (event) => {
      const box = element.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    element.addEventListener('pointerdown', (event) => {
      if (!this.data || event.button !== 0) return;
      const [x] = place(event);
      this.drag = { from: Math.max(this.left, x), to: x, moved: false };
      element.setPointerCapture(event.pointerId);
    });
    element.addEventListener('pointermove', (event) => {
      if (!this.data) return;
      const [x, y] = place(event);
      if (!this.drag) {
        this.say(this.at(x, y));
        return;
      }
      this.drag.to = Math.min(Math.max(this.left, x), this.left + this.plotWidth);
      this.drag.moved ||= Math.abs(this.drag.to - this.drag.from) > DRAG;
      if (this.drag.moved) this.draw();
    });
    element.addEventListener('pointerup', (event) => {
      const { drag } = this;
      this.drag = null;
      if (!drag) return;
      if (drag.moved) {
        const [a, b] = [this.time(drag.from), this.time(drag.to)];
        this.zoom(Math.min(a, b), Math.max(a, b));
      } else {
        const found = this.at(...place(event));
        if (found) this.choose(found.lane, found.op);
      }
    });
    element.addEventListener('pointercancel', () => { this.drag = null; this.draw(); });
    element.addEventListener('dblclick', () => this.reset());
    element.addEventListener('keydown', (event) => { if (this.key(event.key)) event.preventDefault(); });
  }

  /** Arrow keys select operations and lanes, plus and minus zoom, Escape shows the whole step. */
  key(key) {
    if (!this.data) return false;
    const lanes = this.lanes.filter((lane) => lane.ops.length);
    const current = this.chosen ?? { lane: lanes[0], op: lanes[0].ops[0] };
    if (!this.chosen && key.startsWith('Arrow')) {
      this.choose(current.lane, current.op);
      return true;
    }
    const { lane, op } = current;
    const along = { ArrowLeft: -1, ArrowRight: 1 }[key];
    if (along) {
      const next = lane.ops[lane.ops.indexOf(op) + along];
      if (next) this.choose(lane, next);
      return true;
    }
    const across = { ArrowUp: -1, ArrowDown: 1 }[key];
    if (across) {
      const next = lanes[lanes.indexOf(lane) + across];
      if (next) this.choose(next, next.ops.reduce((best, one) => (Math.abs(one.start - op.start) < Math.abs(best.start - op.start) ? one : best)));
      return true;
    }
    const factor = { '+': 0.5, '=': 0.5, '-': 2 }[key];
    if (factor) {
      const [from, to] = this.view;
      const middle = this.chosen ? (op.start + op.end) / 2 : (from + to) / 2;
      this.zoom(middle - ((to - from) * factor) / 2, middle + ((to - from) * factor) / 2);
      return true;
    }
    if (key === 'Escape') {
      this.reset();
      return true;
    }
    return false;
  }
}
