// Pages of plans: the form, the progress, the schedule of an iteration.
import { here } from '../here.js';
import { onPage, onWidth, refresh } from '../app.js';
import { ask } from '../ask.js';
import { token } from '../colors.js';
import { percent, seconds } from '../format.js';
import { Schedule } from './schedule.js';
import { DeviceTable } from './table.js';

const LOOK_MS = 500;

let schedule = null;
let looking = 0;

const explain = (words) => { document.getElementById('said').textContent = words; };

const send = async (request) => (await ask('POST', '/api/v1/plans', request)).plan;

// ---- the form

function cell(kind, words) {
  const made = document.createElement(kind);
  made.textContent = words;
  return made;
}

function showFaults(form, devices, error) {
  const place = document.getElementById('faults');
  const faults = error.faults?.length ? error.faults : [{ column: '', message: error.message }];
  const table = document.createElement('table');
  for (const fault of faults) {
    const row = table.insertRow();
    row.append(cell('td', fault.column ?? (fault.line ? `line ${fault.line}` : '')), cell('td', fault.message));
    if (devices.mark(fault.column)) continue;
    const named = form.elements.namedItem(fault.column?.split(/[.[]/)[0] ?? '');
    (named ?? form.elements.spec).setAttribute('aria-invalid', 'true');
  }
  place.replaceChildren(cell('h2', faults.length === 1 ? 'One fault' : `${faults.length} faults`), table);
  form.querySelector('[aria-invalid=true]')?.focus();
}

function mountForm(form, signal) {
  const button = form.querySelector('[type=submit]');
  button.disabled = false;
  const devices = new DeviceTable(form, JSON.parse(document.getElementById('catalogue').textContent).devices, signal);
  const chosen = /** @type {HTMLInputElement} */ (document.getElementById('file'));
  chosen.addEventListener('change', async () => {
    const [file] = chosen.files;
    if (!file) return;
    form.elements.spec.value = await file.text();
    devices.read();
    if (!form.elements.name.value) form.elements.name.value = file.name.replace(/\.[^.]*$/, '').slice(0, 100);
    chosen.value = '';
    form.elements.spec.focus();
  }, { signal });
  form.addEventListener('submit', async (event) => {
    event.preventDefault();
    button.disabled = true;
    document.getElementById('faults').replaceChildren();
    for (const element of form.elements) element.removeAttribute('aria-invalid');
    const { spec, method, objective, name, time_limit_s: limit } = form.elements;
    try {
      const plan = await send({
        spec: spec.value, method: method.value, objective: objective.value, time_limit_s: limit.value === '' ? null : Number(limit.value),
        ...(name.value.trim() ? { name: name.value.trim() } : {}),
      });
      location.assign(here(`/plans/${plan}`));
    } catch (error) {
      showFaults(form, devices, error);
    } finally {
      button.disabled = false;
    }
  }, { signal });
}

// ---- a plan

async function look(main) {
  const { state } = await ask('GET', `/api/v1/plans/${main.dataset.plan}`);
  if (state !== main.dataset.status) await refresh();
}

function follow(main) {
  clearTimeout(looking);
  if (!('underway' in main.dataset)) return;
  looking = setTimeout(async () => {
    // Not in hidden tabs; errors are ignored, as the next request follows.
    if (!document.hidden) await look(main).catch(() => {});
    if (main.isConnected) follow(main);
  }, LOOK_MS);
}

function mountPlan(main, signal) {
  document.getElementById('cancel')?.addEventListener('click', async () => {
    const response = await fetch(here(`/api/v1/plans/${main.dataset.plan}/cancel`), { method: 'POST' });
    if (response.ok || response.status === 409) await refresh();
    else explain('Canceling failed; try again.');
  }, { signal });
  document.getElementById('again')?.addEventListener('click', async () => {
    try {
      const plan = await send(JSON.parse(document.getElementById('plan-request').textContent));
      if (plan === main.dataset.plan) await refresh();
      else location.assign(here(`/plans/${plan}`));
    } catch (error) {
      explain(error.message);
    }
  }, { signal });
  const element = document.getElementById('schedule');
  schedule = element ? new Schedule(element, JSON.parse(document.getElementById('plan-data').textContent), { token, percent, seconds }, signal) : null;
  follow(main);
}

function mount({ main, stop }) {
  schedule = null;
  const form = document.getElementById('plan-form');
  if (form) mountForm(form, stop.signal);
  if (main.dataset.view === 'plan') mountPlan(main, stop.signal);
}

onPage(mount);
addEventListener('themechange', () => schedule?.draw());
onWidth(() => schedule?.draw());
