// The page of rules: switch them on and off, edit them, and preview one on the last 30 days.
import { here } from '../here.js';
import { fetchPage, onPage } from '../app.js';
import { ask } from '../ask.js';
import { destroys } from '../destroying.js';
import { age, count, percent, times } from '../format.js';
import { clearFaults, read, showFaults } from '../forms.js';
import { line, rect, svg, text } from '../svg.js';
import { SCALED, SHARES, placeOf, ruleOf, said } from './rule.js';

const RULES = '/api/v1/alert-rules';
const DAY_MS = 86_400_000;
const LISTED = 50;

const el = (kind, words, attributes = {}) => Object.assign(document.createElement(kind), words === null ? {} : { textContent: words }, attributes);
const plural = (number, noun) => `${count(number)}\u00a0${noun}${number === 1 ? '' : 's'}`;

// ---- the form

const body = (form) => ruleOf(read(form, { nulls: true }), form.dataset.enabled === 'true');

const chosenKind = (form) => form.querySelector('#rule-condition-kind').value;

function fit(form) {
  const kind = chosenKind(form);
  const shown = new Set(kind === 'weekly' ? ['weekly'] : kind === 'no_data' ? ['no_data', 'jobs'] : kind === 'hang' ? ['jobs'] : kind === 'notice' ? ['notice', 'jobs'] : ['number', 'sessions', 'jobs', kind]);
  for (const part of form.querySelectorAll('[data-for]')) part.hidden = !shown.has(part.dataset.for);
  const unit = { headline: ', ×', slowdown: ', ×', gpu_hours_lost: ', GPU-hours' }[kind] ?? ', %';
  for (const path of SCALED) {
    const label = form.querySelector(`[data-path="${path}"] .label`);
    label.dataset.word ??= label.textContent;
    label.textContent = label.dataset.word + unit;
  }
}

// ---- its faults

function showError(form, error) {
  clearFaults(form);
  const kind = chosenKind(form);
  const faults = (error.faults ?? []).map((fault) => {
    const column = placeOf(kind, fault.column ?? '');
    return { ...fault, column, message: said(kind, fault, column) };
  });
  const elsewhere = showFaults(form, faults);
  form.querySelector('#said').textContent = form.querySelector('[aria-invalid]') ? elsewhere : error.message;
}

function clear(form) {
  clearFaults(form);
  form.querySelector('#said').textContent = '';
}

// ---- its preview

const value = (kind, number_) => {
  if (number_ === null) return 'none';
  if (kind === 'headline' || kind === 'slowdown') return times(number_);
  if (SHARES.has(kind)) return percent(number_);
  return `${number_.toFixed(1)}\u00a0${kind === 'no_data' ? 'min' : 'h'}`;
};

const NAMES = { headline: 'Slowdown', slowdown: 'S', gpu_hours_lost: 'Lost', cause: 'Confidence', no_data: 'Silent for', hang: 'Confidence', notice: 'Slower by', waste: 'Waste', regression: 'Longer by', discrepancy: 'Discrepancy', 'budget.between_steps': 'Lost', 'budget.slow_together': 'Lost' };

/** A moment, which the page's script writes in the reader's zone. */
function moment(ms) {
  const made = el('time', zone.words(ms, 'short', { inUtc: true }), { dateTime: new Date(ms).toISOString(), title: zone.words(ms, 'exact', { inUtc: true }) });
  made.dataset.time = 'short';
  return made;
}

function named(incident) {
  const cause = incident.cause.replaceAll('_', ' ');
  return `${cause[0].toUpperCase()}${cause.slice(1)}${incident.where ? `: ${incident.where}` : ''}`;
}

/** Incidents of each day, of the reader's zone. */
function days(found, width) {
  const since = Date.parse(found.since);
  const dayOf = (ms) => Math.floor(zone.moved(ms) / DAY_MS);
  const first = dayOf(since);
  const last = dayOf(Date.now());
  const counts = new Array(last - first + 1).fill(0);
  for (const incident of found.incidents) counts[Math.min(Math.max(dayOf(Date.parse(incident.fired_at)) - first, 0), counts.length - 1)] += 1;
  const most = Math.max(...counts);
  const step = width / counts.length;
  const drawn = svg('svg', { class: 'days', viewBox: `0 0 ${width} 68`, preserveAspectRatio: 'none', role: 'img', 'aria-label': `Incidents by day, at most ${most}` });
  counts.forEach((number_, index) => {
    const height = (36 * number_) / most;
    if (number_) drawn.append(rect(index * step + 1, 52 - height, step - 2, height, 'day'));
  });
  drawn.append(line(0, 52.5, width, 52.5, 'base'), text(0, 66, zone.words(since, 'day')), text(width, 66, 'today', { 'text-anchor': 'end' }), text(width, 10, `at most ${most} a day`, { 'text-anchor': 'end' }));
  return drawn;
}

function table(found, kind) {
  const made = el('table', null, { className: 'outcomes' });
  const head = made.createTHead().insertRow();
  for (const [word, className] of [['Job and cause', ''], [NAMES[kind], 'num'], ['Fired', 'num'], ['Lasted', 'num']]) head.append(el('th', word, { className, scope: 'col' }));
  const rows = made.createTBody();
  for (const incident of found.incidents.slice(0, LISTED)) {
    const fired = Date.parse(incident.fired_at);
    const when = el('td', null, { className: 'num' });
    when.append(moment(fired));
    const row = rows.insertRow();
    const what = el('td', null, { className: 'grow' });
    what.append(el('a', incident.job, { href: `/jobs/${encodeURIComponent(incident.job)}` }), el('span', `${named(incident)}${incident.severity === 'critical' ? ', critical' : ''}`, { className: 'note' }));
    row.append(
      what,
      el('td', value(kind, incident.value), { className: 'num' }),
      when,
      el('td', incident.resolved_at ? age((Date.parse(incident.resolved_at) - fired) / 1000) : 'still open', { className: 'num' }),
    );
  }
  return made;
}

function verdict(found) {
  const jobs = new Set(found.incidents.map((incident) => incident.job)).size;
  if (!found.incidents.length) return 'It would not have fired';
  return `It would have fired ${found.incidents.length === 1 ? 'once' : `${count(found.incidents.length)} times`}, in ${plural(jobs, 'job')}`;
}

function scope(found) {
  const looked = `${plural(found.sessions, 'session')} of ${plural(found.jobs, 'job')}`;
  if (found.complete) return `Last 30 days, ${looked}; times: ${zone.name()}`;
  return `Only the latest ${looked}, back to ${zone.words(Date.parse(found.since), 'short')}: a preview does not read all sessions of 30 days`;
}

/** Show the summary of a week. */
function showSummary(section, summary) {
  const head = el('div', null, { className: 'cap' });
  const note = el('p', 'The last seven days; nothing is sent');
  note.dataset.scope = '';
  head.append(el('h2', summary.title), note);
  const parts = summary.sections.flatMap(({ heading, lines }) => {
    const list = el('ul', null, { className: 'note' });
    list.append(...lines.map((words) => el('li', words)));
    return [el('h3', heading), list];
  });
  section.replaceChildren(head, ...parts);
}

function showPreview(section, found, kind) {
  if (found.summary) {
    showSummary(section, found.summary);
    return;
  }
  const head = el('div', null, { className: 'cap' });
  const looked = el('p', scope(found));
  looked.dataset.scope = '';
  head.append(el('h2', verdict(found)), looked);
  const parts = [head];
  if (found.incidents.length) parts.push(days(found, Math.max(section.clientWidth, 240)), table(found, kind));
  if (found.incidents.length > LISTED) parts.push(el('p', `And ${count(found.incidents.length - LISTED)} earlier ones.`, { className: 'note more' }));
  section.replaceChildren(...parts);
}

// ---- the page

/** Replace list and summary; the form stays, as a user may be editing it. */
async function freshen(form, signal) {
  const fresh = await fetchPage();
  if (!fresh) return;
  form.dataset.enabled = fresh.getElementById('rule').dataset.enabled;
  form.querySelector('h2').textContent = fresh.querySelector('#rule h2').textContent;
  document.title = fresh.title;
  for (const id of ['summary', 'rules']) document.getElementById(id).replaceWith(document.importNode(fresh.getElementById(id), true));
  mountList(form, signal);
}

function mountList(form, signal) {
  /** @type {NodeListOf<HTMLButtonElement>} */
  const turns = document.querySelectorAll('[data-turn]');
  for (const button of turns) {
    button.disabled = false;
    button.addEventListener('click', async () => {
      button.disabled = true;
      try {
        const address = `${RULES}/${button.dataset.turn}`;
        const stored = await ask('GET', address);
        await ask('PUT', address, { ...stored, enabled: button.dataset.to === 'true' });
        await freshen(form, signal);
        /** @type {HTMLElement | null} */
        const same = document.querySelector(`[data-turn="${button.dataset.turn}"]`);
        same?.focus();
      } catch (error) {
        document.getElementById('turned').textContent = error.message;
        button.disabled = false;
      }
    }, { signal });
  }
}

function mountForm(form, signal) {
  const section = document.getElementById('would');
  const done = form.querySelector('#done');
  const buttons = [...form.querySelectorAll('.actions button')];
  const work = async (doing) => {
    for (const button of buttons) button.disabled = true;
    done.textContent = '';
    try {
      await doing();
    } catch (error) {
      showError(form, error);
    } finally {
      for (const button of buttons) button.disabled = false;
    }
  };
  const save = async () => {
    const known = form.dataset.rule;
    const stored = await ask(known ? 'PUT' : 'POST', known ? `${RULES}/${known}` : RULES, body(form));
    clear(form);
    if (!known) {
      location.assign(here(`/rules/${stored.id}`));
      return;
    }
    await freshen(form, signal);
    done.textContent = 'Saved';
  };
  const preview = async () => {
    const rule = body(form);
    // A preview needs no name.
    const found = await ask('POST', `${RULES}/preview`, { ...rule, name: rule.name || 'preview', enabled: true });
    clear(form);
    showPreview(section, found, rule.condition.kind);
    if (section.getBoundingClientRect().top > innerHeight) section.scrollIntoView({ block: 'start' });
  };
  for (const button of buttons) button.disabled = false;
  form.addEventListener('submit', (event) => {
    event.preventDefault();
    work(save);
  }, { signal });
  form.querySelector('#preview').addEventListener('click', () => work(preview), { signal });
  form.addEventListener('input', () => {
    fit(form);
    done.textContent = '';
    const shown = section.querySelector('[data-scope]');
    if (shown) shown.textContent = 'The form has changed since; choose Preview again';
  }, { signal });
  const deletes = form.querySelector('[data-destroys]');
  if (deletes) {
    destroys(deletes, signal, async () => {
      await ask('DELETE', `${RULES}/${form.dataset.rule}`);
      location.assign(here('/rules'));
    });
  }
  fit(form);
}

function mount({ main, stop }) {
  if (main.dataset.view !== 'rules') return;
  const form = document.getElementById('rule');
  mountForm(form, stop.signal);
  mountList(form, stop.signal);
}

onPage(mount);
