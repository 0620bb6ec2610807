// The DP × PP map: cells on a canvas; names, margins and the selection are drawn on top.
import { heat, isLight } from '../colors.js';
import { times, worker } from '../format.js';
import { every, overlay, rect, svg, text } from '../svg.js';

// Those of the first picture, too (`#heatmap .first` in paceline.css).
const MARGIN = { left: 48, right: 96, top: 28, bottom: 32 };
const NARROW_MARGIN = { ...MARGIN, left: 32, right: 0 };
const NARROW = 720;
// The least widths of a cell with its value, and of a letter of its host.
const VALUE_WIDTH = 40;
const LETTER_WIDTH = 6.2;
const HOT = 1.05;
// From here on cells are pixels of a picture instead of rectangles.
const RECTANGLES = 4096;
const LEVELS = 500;

/** Hatch a cell of which nothing was recorded: [left, top, width, height], in pixels of the canvas. */
function hatch(context, [left, top, width, height], ratio) {
  const apart = 8 * ratio;
  context.save();
  context.beginPath();
  context.rect(left, top, width, height);
  context.clip();
  context.globalAlpha = 0.5;
  context.lineWidth = ratio;
  context.strokeStyle = '#8a919c';
  context.beginPath();
  for (let at = left - height; at < left + width; at += apart) {
    context.moveTo(at, top + height);
    context.lineTo(at + height, top);
  }
  context.stroke();
  context.restore();
}

export class Heatmap {
  /** `values` and `margins` are those of the mean or of one step; `places` has the host of each worker. */
  constructor(element, data, places, { pick, point, isExact }) {
    this.element = element;
    this.data = data;
    this.places = places;
    this.values = data.map;
    this.margins = { dp: data.by_dp, pp: data.by_pp };
    this.cell = data.cell;
    this.isExact = isExact;
    this.canvas = document.createElement('canvas');
    element.addEventListener('click', (event) => { const cell = this.at(event); if (cell) pick(cell); });
    element.addEventListener('mousemove', (event) => point(this.at(event)));
    element.addEventListener('mouseleave', () => point(null));
  }

  /** The value of a worker. */
  value([dp, pp]) { return this.values[pp][dp]; }

  show(values, margins) {
    this.values = values;
    this.margins = margins;
    this.draw();
  }

  select(cell) {
    this.cell = cell;
    if (this.geometry) this.write();
  }

  at(event) {
    if (!this.geometry) return null;
    const box = this.element.getBoundingClientRect();
    const { left, top, cellWidth, cellHeight } = this.geometry;
    const dp = Math.floor((event.clientX - box.left - left) / cellWidth);
    const pp = Math.floor((event.clientY - box.top - top) / cellHeight);
    return dp >= 0 && dp < this.data.dp && pp >= 0 && pp < this.data.pp ? [dp, pp] : null;
  }

  measure() {
    const { dp, pp } = this.data;
    const narrow = innerWidth <= NARROW;
    const { left, right, top, bottom } = narrow ? NARROW_MARGIN : MARGIN;
    const [width, height] = [this.element.clientWidth, this.element.clientHeight];
    const [plotWidth, plotHeight] = [width - left - right, height - top - bottom];
    const [cellWidth, cellHeight] = [plotWidth / dp, plotHeight / pp];
    this.geometry = {
      narrow, left, top, width, height, plotWidth, plotHeight, cellWidth, cellHeight,
      xgap: cellWidth > 24 ? 2 : cellWidth > 8 ? 1 : 0,
      ygap: cellHeight > 24 ? 2 : cellHeight > 6 && dp * pp <= RECTANGLES ? 1 : 0,
    };
  }

  draw() {
    this.measure();
    this.paint();
    this.write();
    this.element.dataset.drawn = '';
  }

  /** Draw the cells. */
  paint() {
    const { width, height, left, top, cellWidth, cellHeight } = this.geometry;
    const { dp, pp } = this.data;
    const { canvas } = this;
    if (!canvas.isConnected) this.element.replaceChildren(canvas);
    const ratio = Math.max(1, devicePixelRatio || 1);
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    const context = canvas.getContext('2d');
    const [x, y] = [(rank) => Math.round((left + rank * cellWidth) * ratio), (stage) => Math.round((top + stage * cellHeight) * ratio)];
    const fits = cellWidth * ratio >= 1 && cellHeight * ratio >= 1;
    if (dp * pp <= RECTANGLES && fits) this.paintRectangles(context, x, y, ratio);
    else this.paintPicture(context, x(0), y(0), x(dp) - x(0), y(pp) - y(0));
  }

  paintRectangles(context, x, y, ratio) {
    const { xgap, ygap } = this.geometry;
    const colors = palette();
    const missing = new Set((this.data.missing ?? []).map(([rank, stage]) => stage * this.data.dp + rank));
    const [acrossGap, downGap] = [xgap * ratio, ygap * ratio];
    this.values.forEach((row, stage) => {
      const from = Math.round(y(stage) + downGap / 2);
      const tall = Math.round(y(stage + 1) - downGap / 2) - from;
      row.forEach((value, rank) => {
        const start = Math.round(x(rank) + acrossGap / 2);
        const wide = Math.round(x(rank + 1) - acrossGap / 2) - start;
        context.fillStyle = `rgb(${colors[level(value)].join()})`;
        if (missing.has(stage * this.data.dp + rank)) hatch(context, [start, from, wide, tall], ratio);
        else context.fillRect(start, from, wide, tall);
      });
    });
  }

  /** Draw cells as pixels; of cells that share a pixel the slowest is seen. */
  paintPicture(context, left, top, width, height) {
    const { dp, pp } = this.data;
    const [across, down] = [Math.max(1, Math.min(dp, width)), Math.max(1, Math.min(pp, height))];
    const levels = new Uint16Array(across * down);
    this.values.forEach((row, stage) => {
      const line = Math.floor((stage * down) / pp) * across;
      row.forEach((value, rank) => {
        const at = line + Math.floor((rank * across) / dp);
        levels[at] = Math.max(levels[at], level(value));
      });
    });
    const colors = Uint8ClampedArray.from(palette().flatMap((color) => [...color, 255]));
    const picture = new ImageData(across, down);
    const pixels = new Uint32Array(picture.data.buffer);
    const known = new Uint32Array(colors.buffer);
    levels.forEach((one, at) => { pixels[at] = known[one]; });
    const small = new OffscreenCanvas(across, down);
    small.getContext('2d').putImageData(picture, 0, 0);
    context.imageSmoothingEnabled = false;
    context.drawImage(small, left, top, width, height);
  }

  /** Draw everything but the cells. */
  write() {
    const { left, top, width, height, plotWidth, plotHeight, cellWidth, cellHeight, narrow } = this.geometry;
    const { dp, pp } = this.data;
    const layer = overlay(this.element, width, height);
    const x = (rank) => left + rank * cellWidth;
    const y = (stage) => top + stage * cellHeight;
    const exact = this.isExact();
    const roomy = cellWidth >= VALUE_WIDTH && cellHeight >= 20;
    if (roomy) {
      for (let stage = 0; stage < pp; stage++) {
        for (let rank = 0; rank < dp; rank++) this.writeCell(layer, rank, stage, x(rank) + cellWidth / 2, y(stage) + cellHeight / 2, exact);
      }
    }
    layer.append(text(0, top - 10, 'Stage'));
    for (let stage = 0; stage < pp; stage += every(cellHeight, 14)) layer.append(text(left - 6, y(stage) + cellHeight / 2 + 4, stage, { 'text-anchor': 'end' }));
    for (let rank = 0; rank < dp; rank += every(cellWidth, dp > 64 ? 36 : 24)) layer.append(text(x(rank) + cellWidth / 2, top + plotHeight + 13, rank, { 'text-anchor': 'middle' }));
    layer.append(text(left + plotWidth / 2, top + plotHeight + 27, 'DP rank', { 'text-anchor': 'middle' }));
    this.writeMargins(layer, x, y, exact);
    if (!narrow) layer.append(text(left + plotWidth + 8, top - 10, '← rank alone'), text(left + plotWidth + 8, top + plotHeight + 14, '↑ stage alone'));
    this.writeChoice(layer, x, y, roomy, exact);
  }

  /** Each DP rank and each stage alone, as bars from 1.0 to 1.5; exact figures where they are asked for and fit. */
  writeMargins(layer, x, y, exact) {
    const { left, top, plotWidth, cellWidth, cellHeight, narrow } = this.geometry;
    const length = (value) => Math.min(1, Math.max(0, (value - 1) * 2));
    const strong = (value) => (value >= HOT ? 'strong' : null);
    const bars = [];
    this.margins.dp.forEach((value, rank) => {
      if (exact && cellWidth >= VALUE_WIDTH) layer.append(text(x(rank) + cellWidth / 2, top - 10, value.toFixed(2), { 'text-anchor': 'middle', class: strong(value) }));
      else {
        const size = Math.max(1, length(value) * 22);
        const thick = Math.max(1, Math.min(24, cellWidth - (cellWidth > 4 ? 1 : 0)));
        bars.push(`M${x(rank) + (cellWidth - thick) / 2} ${top - 4}v${-size}h${thick}v${size}z`);
      }
    });
    if (bars.length) layer.append(svg('path', { class: 'mark', d: bars.join('') }));
    if (narrow) return;
    const right = left + plotWidth + 8;
    this.margins.pp.forEach((value, stage) => {
      const size = Math.max(1, length(value) * 44);
      const thick = cellHeight > 20 ? 8 : Math.max(1, cellHeight - 3);
      layer.append(rect(right, y(stage) + (cellHeight - thick) / 2, size, thick, 'mark'));
      if (exact && cellHeight >= 14) layer.append(text(right + size + 4, y(stage) + cellHeight / 2 + 4, value.toFixed(2), { class: strong(value) }));
    });
  }

  writeCell(layer, rank, stage, centerX, centerY, exact) {
    const { cellWidth, cellHeight } = this.geometry;
    const value = this.values[stage][rank];
    const place = fitting(this.places.of([rank, stage]), cellWidth);
    const kind = `in${isLight(heat(value)) ? '' : ' light'}`;
    const at = { 'text-anchor': 'middle' };
    if (!exact) {
      layer.append(text(centerX, centerY + 4, place, { ...at, class: `${kind}${value >= HOT ? ' hot' : ''}` }));
      return;
    }
    const two = place !== '' && cellHeight >= 40;
    layer.append(text(centerX, centerY + (two ? -1 : 5), value.toFixed(cellWidth >= 52 ? 3 : 2), { ...at, class: `${kind}${cellWidth >= 52 ? ' value' : ''}${value >= HOT ? ' hot' : ''}` }));
    if (two) layer.append(text(centerX, centerY + 15, place, { ...at, class: kind }));
  }

  writeChoice(layer, x, y, roomy, exact) {
    const { left, plotWidth, cellWidth, cellHeight, xgap, ygap } = this.geometry;
    const [rank, stage] = this.cell;
    const boxWidth = Math.max(cellWidth - xgap, 3);
    const boxHeight = Math.max(cellHeight - ygap, 3);
    layer.append(rect(x(rank) + (cellWidth - boxWidth) / 2 - 1, y(stage) + (cellHeight - boxHeight) / 2 - 1, boxWidth + 2, boxHeight + 2, 'pick'));
    if (roomy) return;
    const late = x(rank) > left + plotWidth * 0.75;
    // With a single stage, the axis is directly below.
    const above = stage > 0 || this.data.pp === 1;
    layer.append(text(late ? x(rank) + boxWidth : x(rank), above ? y(stage) - 6 : y(stage) + boxHeight + 15,
      `${worker(rank, stage)}${exact ? ` ${times(this.value(this.cell), 3)}` : ''}`, { class: 'strong', 'text-anchor': late ? 'end' : 'start' }));
  }
}

/** Place of a slowdown on the fixed scale, in thousandths. */
const level = (value) => Math.min(LEVELS, Math.max(0, Math.round(1000 * (value - 1))));

/** Colors of all levels in the current theme. */
const palette = () => Array.from({ length: LEVELS + 1 }, (_, at) => heat(1 + at / 1000));

/** As much of a place as fits a cell: host and GPU, the host, or nothing. */
function fitting(place, width) {
  const fits = (words) => LETTER_WIDTH * words.length + 12 <= width;
  const [host] = place.split(' · ');
  return [place, host].find(fits) ?? '';
}
