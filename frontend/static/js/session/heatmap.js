// The DP × PP map: plotly draws the cells; values, margins and the selection are drawn on top.
import { heat, isLight } from '../colors.js';
import { times, worker } from '../format.js';
import { change, draw } from '../plots.js';
import { every, overlay, rect, svg, text } from '../svg.js';

const MARGIN = { l: 48, r: 96, t: 28, b: 32 };
const NARROW = 720;
// The least widths of a cell with its value, and with its host.
const VALUE_WIDTH = 40;
const PLACE_WIDTH = 112;
const HOT = 1.05;
const GAPPED_CELLS = 16384;

export class Heatmap {
  /** `values` and `margins` are those of the mean or of one step; `places` has the host of each worker. */
  constructor(element, data, places, { pick, point }) {
    this.element = element;
    this.data = data;
    this.places = places;
    this.values = data.figures.heatmap.data[0].z;
    this.margins = { dp: data.by_dp, pp: data.by_pp };
    this.cell = data.cell;
    this.drawn = false;
    element.addEventListener('click', (event) => { const cell = this.at(event); if (cell) pick(cell); });
    element.addEventListener('mousemove', (event) => point(this.at(event)));
    element.addEventListener('mouseleave', () => point(null));
  }

  /** The value of a worker. */
  value([dp, pp]) { return this.values[pp][dp]; }

  show(values, margins) {
    this.values = values;
    this.margins = margins;
    return this.drawn ? this.change() : this.draw();
  }

  /** Other values in the same cells. */
  async change() {
    const { values } = this;
    await change(this.element, { z: [values] });
    if (values === this.values) this.write();
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
    const margin = narrow ? { ...MARGIN, l: 32, r: 0 } : MARGIN;
    const width = this.element.clientWidth;
    const height = this.element.clientHeight;
    const plotWidth = width - margin.l - margin.r;
    const plotHeight = height - margin.t - margin.b;
    const cellWidth = plotWidth / dp;
    const cellHeight = plotHeight / pp;
    this.geometry = {
      narrow, margin, width, height, plotWidth, plotHeight, cellWidth, cellHeight,
      left: margin.l, top: margin.t,
      // With gaps, plotly draws a rectangle for each cell: only for a limited number of cells.
      xgap: cellWidth > 24 ? 2 : cellWidth > 8 ? 1 : 0,
      ygap: cellHeight > 24 ? 2 : cellHeight > 6 && dp * pp <= GAPPED_CELLS ? 1 : 0,
    };
  }

  async draw() {
    this.measure();
    const { margin, cellWidth, cellHeight, xgap, ygap } = this.geometry;
    const figure = this.data.figures.heatmap;
    const { data: [trace], layout } = figure;
    await draw(this.element, {
      data: [{ ...trace, z: this.values, xgap, ygap }],
      layout: {
        ...layout,
        margin: { ...layout.margin, ...margin },
        hovermode: false,
        xaxis: { ...layout.xaxis, dtick: every(cellWidth, this.data.dp > 64 ? 36 : 24) },
        yaxis: { ...layout.yaxis, dtick: every(cellHeight, 14) },
      },
    });
    this.drawn = true;
    this.write();
  }

  /** Draw everything but the cells. */
  write() {
    const { left, top, width, height, plotWidth, plotHeight, cellWidth, cellHeight, narrow } = this.geometry;
    const { dp, pp } = this.data;
    const layer = overlay(this.element, width, height);
    const x = (rank) => left + rank * cellWidth;
    const y = (stage) => top + stage * cellHeight;
    const roomy = cellWidth >= VALUE_WIDTH && cellHeight >= 20;
    if (roomy) {
      for (let stage = 0; stage < pp; stage++) {
        for (let rank = 0; rank < dp; rank++) this.writeCell(layer, rank, stage, x(rank) + cellWidth / 2, y(stage) + cellHeight / 2);
      }
    }
    layer.append(text(0, top - 10, 'Stage'));
    // Margins: each DP rank and each stage alone, as numbers or, without room, as bars from 1.0 to 1.5.
    const length = (value) => Math.min(1, Math.max(0, (value - 1) * 2));
    const strong = (value) => (value >= HOT ? 'strong' : null);
    const bars = [];
    for (let rank = 0; rank < dp; rank++) {
      const value = this.margins.dp[rank];
      if (cellWidth >= VALUE_WIDTH) layer.append(text(x(rank) + cellWidth / 2, top - 10, value.toFixed(2), { 'text-anchor': 'middle', class: strong(value) }));
      else {
        const size = Math.max(1, length(value) * 22);
        bars.push(`M${x(rank)} ${top - 4}v${-size}h${Math.max(1, cellWidth - (cellWidth > 4 ? 1 : 0))}v${size}z`);
      }
    }
    if (bars.length) layer.append(svg('path', { class: 'mark', d: bars.join('') }));
    if (!narrow) {
      const right = left + plotWidth + 8;
      const barred = cellWidth < VALUE_WIDTH;
      const named = cellHeight >= 14;
      for (let stage = 0; stage < pp; stage++) {
        const value = this.margins.pp[stage];
        const bar = barred ? Math.max(1, length(value) * 44) : 0;
        const thick = cellHeight > 20 ? 8 : Math.max(1, cellHeight - 3);
        if (barred) layer.append(rect(right, y(stage) + (cellHeight - thick) / 2, bar, thick, 'mark'));
        if (named) layer.append(text(right + (bar ? bar + 4 : 0), y(stage) + cellHeight / 2 + 4, value.toFixed(2), { class: strong(value) }));
      }
      layer.append(text(right, top - 10, '← rank alone'), text(right, top + plotHeight + 14, '↑ stage alone'));
    }
    this.writeChoice(layer, x, y, roomy);
  }

  writeCell(layer, rank, stage, centerX, centerY) {
    const { cellWidth, cellHeight } = this.geometry;
    const value = this.values[stage][rank];
    const place = this.places.of([rank, stage]);
    const two = cellWidth >= Math.max(PLACE_WIDTH, 6.2 * place.length + 12) && cellHeight >= 40 && place;
    const kind = `in${isLight(heat(value)) ? '' : ' light'}`;
    const at = { 'text-anchor': 'middle' };
    layer.append(text(centerX, centerY + (two ? -1 : 5), value.toFixed(cellWidth >= 52 ? 3 : 2), { ...at, class: `${kind}${cellWidth >= 52 ? ' value' : ''}${value >= HOT ? ' hot' : ''}` }));
    if (two) layer.append(text(centerX, centerY + 15, place, { ...at, class: kind }));
  }

  writeChoice(layer, x, y, roomy) {
    const { left, plotWidth, cellWidth, cellHeight, xgap, ygap } = this.geometry;
    const [rank, stage] = this.cell;
    const boxWidth = Math.max(cellWidth - xgap, 3);
    const boxHeight = Math.max(cellHeight - ygap, 3);
    layer.append(rect(x(rank) + (cellWidth - boxWidth) / 2 - 1, y(stage) + (cellHeight - boxHeight) / 2 - 1, boxWidth + 2, boxHeight + 2, 'pick'));
    if (roomy) return;
    const value = this.value(this.cell);
    const late = x(rank) > left + plotWidth * 0.75;
    // With a single stage, the axis is directly below.
    const above = stage > 0 || this.data.pp === 1;
    layer.append(text(late ? x(rank) + boxWidth : x(rank), above ? y(stage) - 6 : y(stage) + boxHeight + 15,
      `${worker(rank, stage)} ${times(value, 3)}`, { class: 'strong', 'text-anchor': late ? 'end' : 'start' }));
  }
}
