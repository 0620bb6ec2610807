// The entry of every page: mounts its elements, and fetches the page again when the server reports changes.
import { here } from './here.js';
import { copyable } from './clipboard.js';
import { age } from './format.js';
import { mountKeys } from './keys.js';
import { Live } from './live.js';
import { Plot } from './plots.js';
import { asking, ranged } from './ranges.js';
import { sortable } from './tables.js';
import { tabbed } from './tabs.js';
import { mountTerms } from './terms.js';

const TICK_MS = 10_000;
const GATHER_MS = 200;
const LISTS = new Set(['fleet', 'job']);

let mounted = null;
let clockOffsetMs = 0;

class HistoryFigure {
  constructor(data, signal) {
    /** @type {Figure} */
    this.element = document.querySelector('[data-figure=history]');
    this.plot = new Plot(this.element, data.figures.history, signal, () => this.link());
  }

  redraw() { this.plot.redraw(); }

  link() {
    if (this.linked) return;
    this.linked = true;
    this.element.on('plotly_click', (event) => {
      const path = event.points[0].customdata[2];
      if (path) location.href = here(path);
    });
  }
}

async function report(main, signal) {
  const block = document.getElementById('data');
  if (!block) return null;
  const data = JSON.parse(block.textContent);
  if (main.dataset.view === 'job') return new HistoryFigure(data, signal);
  // Other pages need none of it.
  const { DistrustedReport, SessionReport } = await import('./sessions/page.js');
  if (signal.aborted) return null;
  return data.map ? new SessionReport(main, data, signal) : new DistrustedReport(main, data, signal);
}

function mount() {
  const main = document.getElementById('main');
  const stop = new AbortController();
  // Ages are relative to the server's clock.
  clockOffsetMs = Date.now() - Date.parse(document.body.dataset.now || new Date().toISOString());
  tick();
  for (const table of document.querySelectorAll('table[data-sort]')) sortable(table, stop.signal);
  for (const element of document.querySelectorAll('.range')) ranged(element, stop.signal);
  for (const form of document.querySelectorAll('form[data-moments]')) asking(form, stop.signal);
  for (const button of document.querySelectorAll('[data-copy], [data-copy-text]')) copyable(button, stop.signal);
  for (const tabs of document.querySelectorAll('[role=tablist]')) tabbed(tabs, stop.signal);
  const page = { main, stop, report: null };
  mounted = page;
  report(main, stop.signal).then((shown) => { page.report = shown; });
  // For scripts of single pages.
  dispatchEvent(new CustomEvent('pagemounted', { detail: mounted }));
}

/** Call `run` with the page, `main` and `stop` (which ends its listeners), now and after each refresh. */
export function onPage(run) {
  run(mounted);
  addEventListener('pagemounted', (event) => run(event.detail));
}

/** Call `run` after each change of the window's width. */
export function onWidth(run) {
  let width = innerWidth;
  let frame = 0;
  addEventListener('resize', () => {
    if (innerWidth === width) return;
    width = innerWidth;
    cancelAnimationFrame(frame);
    frame = requestAnimationFrame(run);
  });
}

function tick() {
  /** @type {NodeListOf<HTMLTimeElement>} */
  const times = document.querySelectorAll('time[data-ago]');
  for (const element of times) {
    element.textContent = age((Date.now() - clockOffsetMs - Date.parse(element.dateTime)) / 1000);
  }
}

/** Fetch this address again; null if the server refuses. */
export async function fetchPage() {
  const response = await fetch(location.href, { headers: { Accept: 'text/html' } });
  // Another page came, such as that to sign in.
  if (response.redirected) location.assign(response.url);
  return response.ok && !response.redirected ? new DOMParser().parseFromString(await response.text(), 'text/html') : null;
}

/** Fetch this address again and replace the content of the page, without a reload. */
export async function refresh() {
  const fresh = await fetchPage();
  if (!fresh) return;
  const active = /** @type {HTMLInputElement | null} */ (document.activeElement);
  const focus = active?.id ? { id: active.id, start: active.selectionStart, end: active.selectionEnd, value: active.value } : null;
  mounted.stop.abort();
  document.body.dataset.now = fresh.body.dataset.now;
  document.title = fresh.title;
  const nav = document.querySelector('.nav');
  const freshNav = fresh.querySelector('.nav');
  // Only if it changed: the focus may be in it.
  if (nav.innerHTML !== freshNav.innerHTML) nav.replaceChildren(...document.importNode(freshNav, true).childNodes);
  document.getElementById('page').replaceChildren(...document.importNode(fresh.getElementById('page'), true).childNodes);
  const field = focus && /** @type {HTMLInputElement | null} */ (document.getElementById(focus.id));
  if (field) {
    if (field.type === 'search') field.value = focus.value;
    field.focus({ preventScroll: true });
    if (field.type === 'search') field.setSelectionRange(focus.start, focus.end);
  }
  mount();
}

let waiting = 0;

/** Refresh once for several changes; a failed refresh is repeated with the next change. */
function refreshSoon() {
  if (waiting) return;
  waiting = setTimeout(() => {
    waiting = 0;
    // Not while a user fills in a time or a name.
    if (document.querySelector('form.own:not([hidden]), [data-bulk] form:not([hidden]), #views form:not([hidden])')) refreshSoon();
    else refresh().catch(() => {});
  }, GATHER_MS);
}

function changed({ session, state }) {
  const { main } = mounted;
  if (main.dataset.view === 'session') {
    if (main.dataset.session === session && main.dataset.status !== state) refreshSoon();
  } else if (main.dataset.view === 'fleet' || main.dataset.view === 'job') {
    const row = main.querySelector(`tr[data-session="${CSS.escape(session)}"]`);
    if (row?.dataset.status !== state) refreshSoon();
  }
}

function unsure() {
  const { main } = mounted;
  const changes = main.dataset.view === 'session' ? 'underway' in main.dataset : LISTS.has(main.dataset.view);
  if (changes) refreshSoon();
}

mount();
mountKeys();
mountTerms();
new Live(document.getElementById('live'), { changed, unsure });
setInterval(tick, TICK_MS);
addEventListener('themechange', () => mounted.report?.redraw());
addEventListener('zonechange', () => refresh().catch(() => location.reload()));
onWidth(() => mounted.report?.redraw());
