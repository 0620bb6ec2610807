// "What if…": a form for a replay of the session with other durations, and its answer.
import { percent, seconds, times, worker } from '../format.js';
import { stepTicks } from '../bars.js';
import { FIELDS, NO_CHANGE, body, finding, less, read, wording, write } from './question.js';
import { line, overlay, svg, text } from '../svg.js';

const NAMES = Object.keys(NO_CHANGE);
const MARGIN = { left: 0, right: 72, top: 12, bottom: 18 };
// The least distance from the left edge for a centered label.
const EDGE = 12;
// Gains of steps that differ by less are called equal.
const ALIKE = 0.02;
const NOTICED = 1e-4;
const $ = (selector) => document.querySelector(selector);

export class WhatIf {
  /** `choice` is the selection of the page, which the form follows until a user changes it. */
  constructor(data, api, choice, signal) {
    this.data = data;
    this.url = `${api}/what-if`;
    this.signal = signal;
    this.form = $('#ask');
    this.answer = null;
    this.touched = false;
    this.choice = choice;
    this.listen();
    this.back();
  }

  listen() {
    const on = (target, name, handler) => target.addEventListener(name, handler, { signal: this.signal });
    on(this.form, 'submit', (event) => {
      event.preventDefault();
      this.ask({ record: true });
    });
    on(this.form, 'input', (event) => {
      this.touched = true;
      this.writeFactors();
      event.target.removeAttribute('aria-invalid');
    });
    on(this.form, 'click', (event) => {
      const row = event.target.closest('.change');
      if (event.target.closest('.remove')) this.remove(row);
      const pick = event.target.closest('[data-pick]')?.dataset.pick;
      if (pick) this.pick(pick);
    });
    on($('#ask-add'), 'click', () => {
      this.touched = true;
      this.add(NO_CHANGE).elements.worker.focus();
    });
    on(this.form, 'focusin', (event) => { this.current = event.target.closest('.change') ?? this.current; });
  }

  rows() { return [...this.form.querySelectorAll('.change')]; }

  /** The fields of a row, by name. */
  fields(row) { return Object.fromEntries(NAMES.map((name) => [name, row.querySelector(`[name=${name}]`)])); }

  question() {
    const changes = this.rows().map((row) => Object.fromEntries(Object.entries(this.fields(row)).map(([name, field]) => [name, field.value])));
    return { base: this.form.elements.base.value, changes };
  }

  /** Fill a question into the form. */
  fill({ base, changes }) {
    this.form.elements.base.value = base;
    $('#changes').replaceChildren();
    for (const change of changes) this.add(change);
  }

  add(change) {
    const row = $('#change').content.querySelector('.change').cloneNode(true);
    const fields = this.fields(row);
    // A link may combine types that the list has separately.
    if (![...fields.op.options].some(({ value }) => value === change.op)) fields.op.add(new Option(change.op.replaceAll('.', ' + '), change.op));
    for (const [name, field] of Object.entries(fields)) field.value = change[name];
    $('#changes').append(row);
    this.number();
    return { row, elements: fields };
  }

  remove(row) {
    this.touched = true;
    const next = row.nextElementSibling ?? row.previousElementSibling;
    row.remove();
    this.number();
    this.fields(next).worker.focus();
  }

  /** Number the rows for screen readers; the last one cannot be removed. */
  number() {
    const rows = this.rows();
    rows.forEach((row, at) => {
      row.querySelector('legend').textContent = `Change ${at + 1}`;
      const remove = row.querySelector('.remove');
      remove.disabled = rows.length === 1;
      remove.setAttribute('aria-label', `Remove change ${at + 1}`);
      row.querySelector('.fault').id = `fault-${at}`;
    });
    this.writeFactors();
  }

  writeFactors() {
    for (const row of this.rows()) {
      const { effect, scale } = this.fields(row);
      scale.disabled = effect.value !== 'scale';
    }
  }

  /** Take over the selection of the page. */
  select(choice) {
    this.choice = choice;
    const [dp, pp] = choice.cell;
    const step = this.data.steps[choice.index];
    const words = { worker: `worker ${worker(dp, pp)}`, stage: `stage ${pp}`, dp: `DP rank ${dp}`, step: `step ${step}` };
    for (const button of this.form.querySelectorAll('[data-pick]')) button.textContent = words[button.dataset.pick];
    if (!this.touched) this.fill(this.beginning());
  }

  /** The first question: the selected worker like its peers, as in the fixes; ideal without peers. */
  beginning() {
    const { cell, mode, index } = this.choice;
    const step = mode === 'step' ? String(this.data.steps[index]) : '';
    const effect = this.data.dp > 1 ? 'peers' : 'ideal';
    return { base: 'recorded', changes: [{ ...NO_CHANGE, effect, worker: worker(cell[0], cell[1]), step }] };
  }

  /** Fill the selected worker, stage, DP rank or step into the current row. */
  pick(name) {
    this.touched = true;
    const fields = this.fields(this.current?.isConnected ? this.current : this.rows().at(-1));
    const [dp, pp] = this.choice.cell;
    if (name !== 'step') for (const other of ['worker', 'stage', 'dp']) fields[other].value = '';
    fields[name].value = { worker: worker(dp, pp), stage: pp, dp, step: this.data.steps[this.choice.index] }[name];
    fields[name].removeAttribute('aria-invalid');
  }

  /** Take the question from the address, at first and after back and forward. */
  back() {
    const asked = new URLSearchParams(location.search).get('ask');
    if (asked !== null && asked === this.asked) return;
    this.asking?.abort();
    this.asking = null;
    const question = asked === null ? null : read(asked);
    this.asked = asked;
    this.answer = null;
    this.answered = null;
    this.touched = question !== null;
    this.select(this.choice);
    if (question) this.fill(question);
    this.faults([]);
    this.busy(false);
    this.show();
    // Without a form after the retention of the operations.
    if (this.form.hidden) return;
    if (question) this.ask();
    else if (asked !== null) tell($('#ask-fault'), ['The question in the address is not valid; ask again.']);
  }

  async ask({ record = false } = {}) {
    const question = this.question();
    const { document: sent, faults } = body(question, this.data.steps);
    if (this.faults(faults)) return;
    const words = write(question);
    if (this.asking && this.pending === words) return;
    this.asking?.abort();
    const asking = new AbortController();
    this.asking = asking;
    this.pending = words;
    this.busy(true);
    let failure = '';
    try {
      const response = await fetch(this.url, {
        method: 'POST', body: JSON.stringify(sent), headers: { 'Content-Type': 'application/json' },
        signal: AbortSignal.any([this.signal, asking.signal]),
      });
      const answer = await response.json();
      if (response.ok) {
        this.answer = answer;
        this.answered = question;
        if (record) this.record(words);
      } else if (!this.faults(answer.faults ?? [])) failure = answer.detail ?? response.statusText;
    } catch (error) {
      // Replaced by another question.
      if (error.name === 'AbortError') return;
      failure = `The server did not answer: ${error.message}. Ask again.`;
    }
    this.asking = null;
    this.busy(false);
    this.show();
    if (failure) tell($('#ask-fault'), [failure]);
  }

  /** Record an answered question in the address. */
  record(words) {
    this.asked = words;
    this.touched = true;
    const url = new URL(location.href);
    url.searchParams.set('ask', words);
    url.hash = 'what-if';
    if (url.href !== location.href) history.pushState(null, '', url);
  }

  busy(is) {
    $('#ask-go').textContent = is ? 'Asking…' : 'Ask';
    $('#answer').setAttribute('aria-busy', String(is));
    if (is) $('#ask-read').textContent = `Replaying ${this.data.steps.length} steps…`;
  }

  /** Show faults at their fields; return whether there are any. */
  faults(faults) {
    const rows = this.rows();
    const messages = new Map([...rows, null].map((row) => [row, []]));
    for (const field of this.form.querySelectorAll('[aria-invalid]')) for (const name of ['aria-invalid', 'aria-describedby']) field.removeAttribute(name);
    let first = null;
    for (const { column = '', message } of faults) {
      const [, at, key] = /^changes\[(\d+)\](?:\.select)?(?:\.(\w+))?$/.exec(column) ?? [];
      const row = rows[at] ?? null;
      const name = Object.keys(FIELDS).find((each) => FIELDS[each].key === key) ?? (key === 'scale' ? key : null);
      const field = row?.querySelector(`[name=${name ?? 'worker'}]`);
      field?.setAttribute('aria-invalid', 'true');
      field?.setAttribute('aria-describedby', `fault-${at}`);
      first ??= field;
      // Below the first wrong field.
      if (row && !messages.get(row).length) row.querySelector('.fault').dataset.at = name ?? 'worker';
      messages.get(row).push(name ? `${FIELDS[name]?.label ?? 'Factor'}: ${message}` : message);
    }
    for (const [row, words] of messages) tell(row ? row.querySelector('.fault') : $('#ask-fault'), words);
    first?.focus();
    return faults.length > 0;
  }

  /** Show the answer, or that there is none. */
  show() {
    const { answer } = this;
    const heading = $('#ask-title');
    const now = answer?.simulated_step_time_s ?? mean(this.data.simulated_s);
    const ideal = answer?.ideal_step_time_s ?? mean(this.data.ideal_s);
    const then = answer?.step_time_s ?? 0;
    const reference = now / this.data.slowdown;
    const longest = Math.max(now, then, ideal);
    heading.textContent = answer ? finding(this.answered, answer) : heading.dataset.unasked;
    for (const [row, value] of [['#ask-now', now], ['#ask-then', then], ['#ask-ideal', ideal], ['#ask-reference', reference]]) {
      // If the reference is the ideal, it has no row.
      $(`${row} rect`)?.setAttribute('width', String((100 * value) / longest));
    }
    const cells = $('#ask-then').cells;
    $('#ask-then rect').setAttribute('class', 'sel');
    $('#ask-then .n5').textContent = answer ? seconds(then) : '';
    cells[0].textContent = this.answered?.changes.length > 1 ? 'With the changes' : 'With the change';
    cells[2].textContent = answer ? times(answer.reference.slowdown, 3) : '';
    cells[3].textContent = answer ? `${answer.gain < 0 ? '+' : ''}${percent(-answer.gain)}` : '';
    $('#ask-ideal').cells[3].textContent = percent(ideal / now - 1);
    if ($('#ask-reference')) $('#ask-reference').cells[3].textContent = percent(reference / now - 1);
    $('#ask-copy').disabled = !answer;
    $('#ask-read').textContent = answer ? this.sentence() : this.form.hidden ? 'Bars show each step as it was.' : 'No question yet: bars show each step as it is.';
    if (answer) {
      $('#ask-data').textContent = ['step\tas_it_is_s\twith_changes_s', ...answer.steps.map((step, at) => `${step}\t${this.data.simulated_s[at]}\t${answer.step_times_s[at]}`)].join('\n');
    }
    this.draw();
  }

  /** The bars of the steps as text. */
  sentence() {
    const { simulated_s: before, steps } = this.data;
    const gains = this.answer.step_times_s.map((value, at) => 1 - value / before[at]);
    const [low, high] = [Math.min(...gains), Math.max(...gains)];
    const head = `${wording(this.answered)}: slowdown ${times(this.answer.reference.slowdown, 3)} instead of ${times(this.data.slowdown, 3)}.`;
    if (high - low < ALIKE) return `${head} All steps gain equally.`;
    return `${head} From ${less(high)} in step ${steps[gains.indexOf(high)]} to ${less(low)} in step ${steps[gains.indexOf(low)]}.`;
  }

  /** Draw each step as it is, gray, and with the change; bars from 0. */
  draw() {
    const element = $('#ask-steps');
    const [width, height] = [element.clientWidth, element.clientHeight];
    const { simulated_s: before, ideal_s: ideals, steps } = this.data;
    const after = this.answer?.step_times_s ?? [];
    const top = Math.max(...before, ...after);
    const plotWidth = width - MARGIN.left - MARGIN.right;
    const bottom = height - MARGIN.bottom;
    const y = (value) => bottom - (value / top) * (bottom - MARGIN.top);
    const each = plotWidth / steps.length;
    const gap = each > 6 ? 2 : each > 3 ? 1 : 0;
    const bars = (from, to) => from.map((low, at) => (to[at] > low ? `M${(MARGIN.left + at * each).toFixed(2)} ${y(low).toFixed(2)}V${y(to[at]).toFixed(2)}h${(each - gap).toFixed(2)}V${y(low).toFixed(2)}z` : '')).join('');
    const layer = overlay(element, width, height);
    // Blue up to the answer and gray above it; if the answer is longer, gray and blue above.
    const longer = after.map((value, at) => value > before[at] * (1 + NOTICED));
    const zeros = before.map(() => 0);
    layer.append(svg('path', { class: 'now', d: bars(before.map((_, at) => (longer[at] ? 0 : after[at] ?? 0)), before) }));
    layer.append(svg('path', { class: 'then', d: bars(zeros.map((zero, at) => (longer[at] ? before[at] : zero)), after) }));
    layer.append(line(MARGIN.left, bottom, MARGIN.left + plotWidth, bottom, 'axis'));
    const ideal = mean(ideals);
    const right = MARGIN.left + plotWidth + 6;
    layer.append(line(MARGIN.left, y(ideal), MARGIN.left + plotWidth, y(ideal), 'goal'));
    if (y(ideal) - y(top) > 14) layer.append(text(right, y(top) + 4, seconds(top)));
    layer.append(text(right, y(ideal) + 4, `${seconds(ideal)} ideal`), text(right, bottom, '0'));
    const { tickvals, ticktext } = stepTicks(steps, each, plotWidth);
    tickvals.forEach((at, tick) => {
      const x = MARGIN.left + (at + 0.5) * each;
      layer.append(x < EDGE ? text(0, height - 4, ticktext[tick]) : text(x, height - 4, ticktext[tick], { 'text-anchor': 'middle' }));
    });
    element.setAttribute('aria-label', this.answer ? `Time of each step as it is and with the change. ${this.sentence()}` : 'Time of each step as it is');
  }
}

const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

/** Show messages with the sign of an error. */
function tell(paragraph, messages) {
  const sign = svg('svg', { width: 10, height: 10, 'aria-hidden': 'true' });
  sign.append(svg('use', { href: '#g-fail' }));
  const shown = messages.slice(0, 3).join('; ') + (messages.length > 3 ? `; and ${messages.length - 3} more` : '');
  paragraph.replaceChildren(...(messages.length ? [sign, shown] : []));
}
