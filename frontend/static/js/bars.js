// Bars over steps as SVG: the strip of slowdowns, recorded times, launch delays.
import { line, overlay, svg, text } from './svg.js';

const NARROW = 720;
const LEFT = 48;
const NARROW_LEFT = 40;
const TOP = 8;
const CORNER_TOP = 16;
const BOTTOM = 20;
// Room for labels at the right.
const RIGHT = 96;
const EDGE = 8;

/** Which of `steps` to label below a strip of bars, and where. */
export function stepTicks(steps, barWidth, width) {
  const tickvals = [];
  const ticktext = [];
  let last = -Infinity;
  steps.forEach((step, position) => {
    const x = (position + 0.5) * barWidth;
    const room = 7 * String(step).length + 20;
    if (x - last < room || x > width - room / 3) return;
    tickvals.push(position);
    ticktext.push(String(step));
    last = x;
  });
  return { tickvals, ticktext };
}

/** Where the bars of an element are, in its pixels. */
export function geometry(element, bars) {
  const narrow = innerWidth <= NARROW;
  const left = narrow ? NARROW_LEFT : LEFT;
  const right = narrow ? 0 : bars.right.length ? RIGHT : EDGE;
  const width = element.clientWidth - left - right;
  return { narrow, left, width, barWidth: width / bars.values.length };
}

/** The bar at an event, or -1. */
function at(event, element, bars) {
  const { left, barWidth } = geometry(element, bars);
  const index = Math.floor((event.clientX - element.getBoundingClientRect().left - left) / barWidth);
  return index >= 0 && index < bars.values.length ? index : -1;
}

/** Say of a bar what it stands for when it is pointed at, and `pick` it when it is clicked. */
export function pointed(element, bars, pick, signal) {
  element.addEventListener('mousemove', (event) => { element.title = bars.words[at(event, element, bars)] ?? ''; }, { signal });
  if (pick) element.addEventListener('click', (event) => { const index = at(event, element, bars); if (index >= 0) pick(index); }, { signal });
}

/** Draw bars (StepBars of app/sessions/pages/figures.py) over `steps`, with the chosen one in the accent. */
export function drawBars(element, bars, steps, chosen = -1) {
  const { narrow, left, width, barWidth } = geometry(element, bars);
  const [from, to] = bars.range;
  const top = bars.unit ? CORNER_TOP : TOP;
  const bottom = element.clientHeight - BOTTOM;
  const y = (value) => bottom - ((value - from) / (to - from)) * (bottom - top);
  const x = (index) => left + index * barWidth;
  const layer = overlay(element, element.clientWidth, element.clientHeight);
  for (const [value, label] of bars.ticks) {
    layer.append(line(left, y(value), left + width, y(value), 'grid'), text(left - 6, y(value) + 4, label, { 'text-anchor': 'end' }));
  }
  const gap = barWidth > 6 ? 0.12 * barWidth : 0;
  const path = (value, index) => `M${(x(index) + gap / 2).toFixed(2)} ${y(bars.base).toFixed(2)}V${y(value).toFixed(2)}h${(barWidth - gap).toFixed(2)}V${y(bars.base).toFixed(2)}z`;
  layer.append(svg('path', { class: 'step', d: bars.values.map((value, index) => (index === chosen ? '' : path(value, index))).join('') }));
  if (chosen >= 0) layer.append(svg('path', { class: 'sel', d: path(bars.values[chosen], chosen) }));
  if (bars.marks.length) {
    layer.append(svg('path', { class: 'tick', d: bars.marks.map((value, index) => `M${(x(index) + gap / 2).toFixed(2)} ${y(value).toFixed(2)}h${(barWidth - gap).toFixed(2)}`).join('') }));
  }
  for (const start of bars.starts) layer.append(line(x(start), top, x(start), bottom + 3, 'cut'));
  layer.append(line(left, y(bars.base), left + width, y(bars.base), 'base'));
  if (bars.level) layer.append(line(left, y(bars.level.value), left + width, y(bars.level.value), 'level'));
  if (!narrow) {
    for (const [value, label] of bars.right) layer.append(text(left + width + 6, y(value) + 4, label));
    if (bars.level) layer.append(text(left + width + 6, y(bars.level.value) + 4 - bars.level.shift, bars.level.label, { class: 'strong' }));
  }
  if (bars.unit) layer.append(text(left, top - 5, bars.unit));
  const { tickvals, ticktext } = stepTicks(steps, barWidth, width);
  tickvals.forEach((index, tick) => { layer.append(text(x(index) + barWidth / 2, bottom + 13, ticktext[tick], { 'text-anchor': 'middle' })); });
  element.dataset.drawn = '';
}
