// The page of a session: map, strip, timeline and address share one selection (mean or step, worker).
import { here } from '../here.js';
import { drawBars, geometry, pointed } from '../bars.js';
import { count, seconds, times, worker } from '../format.js';
import { Heatmap } from './heatmap.js';
import { Plot } from '../plots.js';
import { whenSeen } from '../seen.js';
import { Places } from './places.js';
import { Timeline } from './timeline.js';
import { WhatIf } from './what_if.js';

const NARROW = 720;
const NARROW_RANKS = 2;
// The timeline is fetched when the range has not changed for this time.
const REST_MS = 200;
// Changes of the range within this time are one entry in the history.
const GESTURE_MS = 1000;
const $ = (selector) => document.querySelector(selector);

export class SessionReport {
  constructor(main, data, signal) {
    this.data = data;
    this.places = new Places(data.places, data.dp);
    this.api = here(`/api/v1/sessions/${main.dataset.session}`);
    this.title = main.dataset.title;
    this.signal = signal;
    this.maps = new Map();
    this.defaults = { mode: data.by_request ? 'step' : 'mean', index: data.index, cell: data.cell };
    this.choice = { ...this.defaults };
    this.worstIndex = data.step_slowdown.indexOf(Math.max(...data.step_slowdown));
    this.ticket = 0;
    this.worst = null;
    this.heatmap = new Heatmap($('#heatmap'), data, this.places, {
      pick: (cell) => this.go({ cell }), point: (cell) => this.readCell(cell ?? this.choice.cell, cell !== null), isExact,
    });
    this.timeline = new Timeline($('#timeline'), $('#op-read'), data.pp, this.ranks().length);
    const scatter = $('[data-figure=scatter]');
    this.plot = scatter && new Plot(scatter, data.figures.scatter, signal);
    this.whatIf = new WhatIf(data, this.api, this.choice, signal);
    this.listen();
    this.drawAll();
  }

  listen() {
    const on = (target, name, handler) => target.addEventListener(name, handler, { signal: this.signal });
    on($('#mode-mean'), 'click', () => this.go({ mode: 'mean' }));
    on($('#mode-step'), 'click', () => this.go({ mode: 'step' }));
    const range = $('#step');
    let lastMs = -Infinity;
    on(range, 'input', (event) => {
      const record = event.timeStamp - lastMs < GESTURE_MS ? 'replace' : 'push';
      lastMs = event.timeStamp;
      this.go({ mode: 'step', index: Number(range.value) }, { record });
    });
    pointed($('#strip'), this.data.figures.strip, (index) => this.go({ mode: 'step', index }), this.signal);
    pointed($('[data-figure=launch]'), this.data.figures.launch, null, this.signal);
    on($('#exact'), 'toggle', () => {
      this.heatmap.select(this.choice.cell);
      this.readCell(this.choice.cell);
      this.readStep();
    });
    on($('.workers'), 'click', (event) => {
      const row = event.target.closest('tr[data-dp]');
      // Not for the link to the worker's host.
      if (!row || event.target.closest('a:not([data-cell])') || event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      this.go({ cell: [Number(row.dataset.dp), Number(row.dataset.pp)] });
    });
    // Evidence links to a worker, a step, or a figure of this page.
    on($('#main'), 'click', (event) => {
      const link = event.target.closest('a[data-go]');
      if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
      const parameters = new URLSearchParams(new URL(link.href).search);
      const index = this.data.steps.indexOf(Number(parameters.get('step') ?? NaN));
      if (link.getAttribute('href').startsWith('#')) return;
      event.preventDefault();
      if (index >= 0) this.go({ mode: 'step', index });
      else this.go({ cell: [Number(parameters.get('dp')), Number(parameters.get('pp'))] });
      $(index >= 0 ? '#timeline' : '#heatmap').scrollIntoView({ block: 'center' });
    });
    whenSeen($('#timeline'), () => {
      this.timelineSeen = true;
      this.loadTimeline();
    }, this.signal);
    on($('#reset-zoom'), 'click', () => this.timeline.reset());
    on(window, 'popstate', () => this.back());
  }

  /** Change the selection, record it in the address, and show it. */
  go(change, { record = 'push' } = {}) {
    const before = this.choice;
    this.choice = { ...before, ...change };
    const url = new URL(location.href);
    if (this.choice.mode === 'step') url.searchParams.set('step', this.data.steps[this.choice.index]);
    else url.searchParams.delete('step');
    url.searchParams.set('dp', this.choice.cell[0]);
    url.searchParams.set('pp', this.choice.cell[1]);
    if (url.href !== location.href) history[`${record}State`](null, '', url);
    return this.show(before);
  }

  /** Take the selection from the address, after back or forward. */
  back() {
    const parameters = new URLSearchParams(location.search);
    const index = this.data.steps.indexOf(Number(parameters.get('step') ?? NaN));
    const cell = parameters.has('dp') && parameters.has('pp') ? [Number(parameters.get('dp')), Number(parameters.get('pp'))] : this.defaults.cell;
    const before = this.choice;
    this.choice = { mode: index < 0 ? 'mean' : 'step', index: index < 0 ? this.worstIndex : index, cell };
    this.show(before);
    this.whatIf.back();
  }

  /** Show the selection; draw only what differs from `before`. */
  async show(before) {
    const { mode, index, cell } = this.choice;
    const mapChanged = mode !== before.mode || (mode === 'step' && index !== before.index);
    this.heatmap.cell = cell;
    if (mapChanged) this.worst = null;
    this.markRow();
    this.writeControls();
    this.whatIf.select(this.choice);
    const jobs = [];
    if (index !== before.index) this.drawStrip();
    if (mapChanged) jobs.push(this.showMap());
    else this.heatmap.select(cell);
    this.readCell(cell);
    if (index !== before.index || !this.shownRanks?.includes(cell[0])) jobs.push(this.loadTimeline());
    await Promise.all(jobs);
  }

  drawAll() {
    this.markRow();
    this.writeControls();
    this.drawStrip();
    this.showMap();
    this.loadTimeline();
    this.drawOthers();
  }

  redraw() {
    this.drawStrip();
    this.heatmap.draw();
    this.timeline.draw();
    this.whatIf.draw();
    this.plot?.redraw();
    this.drawOthers();
  }

  drawOthers() {
    const { figures, steps } = this.data;
    drawBars($('[data-figure=launch]'), figures.launch, steps);
  }

  /** Slowdowns as rows of stages, with their margins. */
  async values(index) {
    const { dp, pp, steps, by_dp_step: byDp, by_pp_step: byPp } = this.data;
    const step = steps[index];
    if (!this.maps.has(step)) {
      const loading = fetch(`${this.api}/heatmaps?step=${step}`, { signal: this.signal }).then(async (response) => {
        if (!response.ok) throw new Error(`heatmap of step ${step}: ${response.status}`);
        const view = new DataView(await response.arrayBuffer());
        return Array.from({ length: pp }, (_, stage) => Array.from({ length: dp }, (__, rank) => {
          return view.getUint16(2 * (rank * pp + stage), true) / this.data.heatmap_scale;
        }));
      });
      loading.catch(() => this.maps.delete(step));
      this.maps.set(step, loading);
    }
    return { rows: await this.maps.get(step), margins: { dp: byDp.map((row) => row[index]), pp: byPp.map((row) => row[index]) } };
  }

  async showMap() {
    const ticket = ++this.ticket;
    const { mode, index } = this.choice;
    const heading = $('#map-title');
    // After the retention of heatmaps, only the mean of the report is left.
    if (mode === 'mean' || 'meanOnly' in $('#heatmap').dataset) {
      heading.textContent = heading.dataset.mean;
      $('#heatmap').setAttribute('aria-label', heading.textContent);
      this.heatmap.show(this.data.map, { dp: this.data.by_dp, pp: this.data.by_pp });
      this.readCell(this.choice.cell);
      this.readStep(null);
      return;
    }
    let found;
    try {
      found = await this.values(index);
    } catch (error) {
      if (error.name === 'AbortError') return;
      $('#cell').textContent = `Step ${this.data.steps[index]} could not be loaded: ${error.message}. The map is unchanged.`;
      return;
    }
    // The selection has changed meanwhile.
    if (ticket !== this.ticket) return;
    const worst = worstOf(found.rows);
    heading.textContent = `Step ${this.data.steps[index]}: worker ${worker(worst.dp, worst.pp)} costs most`;
    $('#heatmap').setAttribute('aria-label', heading.textContent);
    this.heatmap.show(found.rows, found.margins);
    this.readCell(this.choice.cell);
    this.readStep(worst);
  }

  drawStrip() {
    const { figures, steps } = this.data;
    const { left, barWidth } = geometry($('#strip'), figures.strip);
    const range = $('#step');
    const thumb = 12;
    range.style.marginLeft = `${left + barWidth / 2 - thumb / 2}px`;
    range.style.width = `${(steps.length - 1) * barWidth + thumb}px`;
    drawBars($('#strip'), figures.strip, steps, this.choice.index);
  }

  /** DP ranks whose lanes are drawn: all, or those around the selected worker. */
  ranks() {
    const { dp, pp, lanes } = this.data;
    const most = Math.max(1, innerWidth <= NARROW ? NARROW_RANKS : Math.floor(lanes / pp));
    if (dp <= most) return Array.from({ length: dp }, (_, rank) => rank);
    const first = Math.min(Math.max(0, this.choice.cell[0] - Math.floor((most - 1) / 2)), dp - most);
    return Array.from({ length: most }, (_, at) => first + at);
  }

  async loadTimeline() {
    const { steps, dp } = this.data;
    const step = steps[this.choice.index];
    const ranks = this.ranks();
    this.shownRanks = ranks;
    this.loading?.abort();
    this.loading = new AbortController();
    const signal = AbortSignal.any([this.signal, this.loading.signal]);
    const element = $('#timeline');
    const { gone } = element.dataset;
    const query = new URLSearchParams({ step: String(step) });
    if (ranks.length < dp) for (const rank of ranks) query.append('dp', String(rank));
    const named = ranks.length < dp ? `DP rank${ranks.length > 1 ? `s ${ranks[0]} to ${ranks.at(-1)}` : ` ${ranks[0]}`}` : '';
    this.nameTimeline(step, String(query), named);
    $('#lanes-note').textContent = named ? `; ${named} of ${count(dp)}` : '';
    query.set('format', 'lanes');
    const reading = $('#op-read');
    if (gone) {
      reading.textContent = gone;
      return;
    }
    if (!this.timelineSeen) {
      element.dataset.waits = `Timeline of step ${step}: loads when it comes into view`;
      return;
    }
    element.dataset.waits = `Timeline of step ${step}: loading…`;
    element.setAttribute('aria-busy', 'true');
    try {
      if (this.timeline.data) {
        reading.textContent = `Loading step ${step}; step ${this.timeline.data.step} is still shown.`;
        await rest(REST_MS, signal);
      }
      const response = await fetch(`${this.api}/timeline?${query}`, { signal });
      if (!response.ok) throw new Error((await response.json()).detail ?? response.statusText);
      this.timeline.show(await response.json());
      element.removeAttribute('aria-busy');
    } catch (error) {
      if (error.name === 'AbortError') return;
      element.removeAttribute('aria-busy');
      element.dataset.waits = `The timeline of step ${step} did not load`;
      const again = document.createElement('button');
      again.type = 'button';
      again.className = 'link';
      again.textContent = 'Load it again';
      again.addEventListener('click', () => this.loadTimeline(), { signal: this.signal });
      reading.replaceChildren(`The timeline of step ${step} did not load: ${error.message} `, again);
    }
  }

  /** Write the heading of the timeline and the links to its files: as drawn, and of all DP ranks. */
  nameTimeline(step, query, ranks) {
    const [recordedS, idealS] = [this.data.recorded_s[this.choice.index], this.data.ideal_s[this.choice.index]];
    const lost = recordedS - idealS;
    $('#timeline-title').textContent = lost <= 0.01 * recordedS
      ? `Step ${step} took ${seconds(recordedS)}, its ideal time`
      : `Step ${step} took ${seconds(recordedS)}, ${seconds(lost)} of it above ideal`;
    const [drawn, file, whole] = [$('#perfetto'), $('#perfetto-file'), $('#perfetto-whole')];
    for (const link of [drawn, file, whole]) {
      link.href = `${this.api}/timeline?${link === whole ? `step=${step}` : query}`;
      link.download = link.download.replace(/step--?\d+/, `step-${step}`);
    }
    file.textContent = `Timeline of step ${step}${ranks && `, ${ranks}`} (Perfetto)`;
    whole.hidden = !ranks || 'gone' in $('#timeline').dataset;
  }

  writeControls() {
    const { steps } = this.data;
    const { mode, index } = this.choice;
    const step = steps[index];
    $('#mode-mean').setAttribute('aria-pressed', String(mode === 'mean'));
    $('#mode-step').setAttribute('aria-pressed', String(mode === 'step'));
    $('#mode-step').textContent = `Step ${step}`;
    const range = $('#step');
    range.value = index;
    range.setAttribute('aria-valuetext', `Step ${step}, ${times(this.data.step_slowdown[index])}`);
    const tools = $('#map-title').closest('.cap').querySelectorAll('[data-copy], [data-csv]');
    for (const tool of tools) {
      const name = tool.hasAttribute('data-copy') ? 'data-copy' : 'href';
      const file = tool.getAttribute(name).split('?')[0];
      tool.setAttribute(name, mode === 'step' && !('meanOnly' in $('#heatmap').dataset) ? `${file}?step=${step}` : file);
    }
    document.title = mode === 'step' ? `Step ${step} of ${this.title}` : this.title;
    this.readStep();
  }

  markRow() {
    const [dp, pp] = this.choice.cell;
    /** @type {NodeListOf<HTMLTableRowElement>} */
    const rows = document.querySelectorAll('.workers tbody tr');
    for (const row of rows) {
      row.setAttribute('aria-selected', String(Number(row.dataset.dp) === dp && Number(row.dataset.pp) === pp));
    }
  }

  /** Name a worker; its S_w where it is pointed at, or exact figures are asked for. */
  readCell([dp, pp], isPointed = false) {
    const { mode, index } = this.choice;
    const place = this.places.of([dp, pp]);
    const line = $('#cell');
    line.replaceChildren(strong(`Worker ${worker(dp, pp)}`), place ? ` · ${place}` : '');
    if (isPointed || isExact()) {
      const subscript = document.createElement('sub');
      subscript.textContent = 'w';
      line.append(' · S', subscript, ' ', strong(times(this.heatmap.value([dp, pp]), 3)));
    }
    line.append(mode === 'mean' ? (this.data.steps.length === 1 ? ' · the one step' : ` · mean of ${this.data.steps.length} steps`) : ` · in step ${this.data.steps[index]}`);
  }

  readStep(worst = this.worst) {
    const { steps, recorded_s: recorded, step_slowdown: slowdown } = this.data;
    const { index, mode } = this.choice;
    this.worst = worst;
    const line = $('#step-read');
    line.replaceChildren(strong(`Step ${steps[index]}`), mode === 'mean' && index === this.worstIndex ? ', the slowest' : '', ` · ${seconds(recorded[index])} recorded`);
    if (mode === 'step' || isExact()) line.append(' · ', strong(times(slowdown[index], isExact() ? 3 : 2)));
    if (worst) line.append(` · worst worker ${worker(worst.dp, worst.pp)}${isExact() ? ` ${times(worst.value, 3)}` : ''}`);
  }
}

/** The page of a session with a discrepancy above the limit: recorded times and launch delays only. */
export class DistrustedReport {
  constructor(_main, data, signal) {
    this.data = data;
    for (const element of this.elements()) pointed(element, data.figures[element.dataset.figure], null, signal);
    this.redraw();
  }

  /** @returns {NodeListOf<HTMLElement>} */
  elements() { return document.querySelectorAll('[data-figure]'); }

  redraw() {
    for (const element of this.elements()) drawBars(element, this.data.figures[element.dataset.figure], this.data.steps);
  }
}

/** Whether exact figures are asked for. */
const isExact = () => $('#exact').open;

/** Wait; rejects as a fetch does when aborted. */
function rest(delayMs, signal) {
  return new Promise((resolve, reject) => {
    signal.throwIfAborted();
    const timer = setTimeout(resolve, delayMs);
    signal.addEventListener('abort', () => {
      clearTimeout(timer);
      reject(signal.reason);
    }, { once: true });
  });
}

function strong(words) {
  const element = document.createElement('b');
  element.textContent = words;
  return element;
}

/** The worker with the greatest value in rows of stages. */
function worstOf(rows) {
  let worst = { dp: 0, pp: 0, value: -1 };
  rows.forEach((row, pp) => {
    row.forEach((value, dp) => { if (value > worst.value) worst = { dp, pp, value }; });
  });
  return worst;
}
