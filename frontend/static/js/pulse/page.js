// A job, live: every few seconds its words are replaced, and the map gets the minutes that are new.
import { onPage, onWidth } from '../app.js';
import { here } from '../here.js';
import { COLUMNS } from './cells.js';
import { PulseMap } from './map.js';

const LOOK_MS = 5000;

/** Replace what the parts of a page say, except where nothing changed: the focus may be in it. */
async function replace(section) {
  const response = await fetch(here(section.dataset.live), { headers: { Accept: 'text/html' } });
  if (!response.ok || response.redirected) return;
  const fresh = new DOMParser().parseFromString(await response.text(), 'text/html');
  for (const part of document.querySelectorAll('[data-part]')) {
    const found = fresh.querySelector(`[data-part="${/** @type {HTMLElement} */ (part).dataset.part}"]`);
    if (found && part.innerHTML !== found.innerHTML) part.replaceChildren(...document.importNode(found, true).childNodes);
  }
}

/** How many minutes are across: the map, the lines above it and the buttons say the same. */
function alike(section, shown) {
  section.querySelector('.step-lines svg')?.setAttribute('viewBox', `${COLUMNS - shown.columns} 0 ${shown.columns} 100`);
  for (const button of section.querySelectorAll('[data-columns]')) button.setAttribute('aria-pressed', String(Number(button.dataset.columns) === shown.columns));
}

/** The choice stands in the address. */
function choose(columns) {
  const address = new URL(location.href);
  address.searchParams.set('minutes', String(columns));
  history.replaceState(history.state, '', address);
}

/** @type {PulseMap | null} */
let map = null;

function mount({ main, stop }) {
  const section = main.querySelector('[data-live]');
  if (!section) return;
  map = new PulseMap(section.querySelector('.pulse-map'), section.querySelector('.reading'), map, stop.signal);
  const shown = map;
  const buttons = [...section.querySelectorAll('[data-columns]')];
  const asked = Number(new URLSearchParams(location.search).get('minutes'));
  if (buttons.some((button) => Number(button.dataset.columns) === asked)) shown.chosen = asked;
  for (const button of buttons) {
    button.disabled = false;
    button.addEventListener('click', () => {
      choose(button.dataset.columns);
      shown.show(Number(button.dataset.columns));
      alike(section, shown);
    }, { signal: stop.signal });
  }
  const zooms = { in: () => shown.zoom(0.5), out: () => shown.zoom(2), all: () => shown.whole() };
  for (const button of section.querySelectorAll('[data-zoom]')) button.addEventListener('click', zooms[button.dataset.zoom], { signal: stop.signal });
  const may = () => {
    for (const button of section.querySelectorAll('[data-zoom]')) button.disabled = button.dataset.zoom !== 'in' && !shown.isZoomed;
  };
  shown.element.addEventListener('drawn', may, { signal: stop.signal });
  const look = async () => {
    await shown.look();
    alike(section, shown);
  };
  look().catch(() => {});
  let waiting = 0;
  const again = () => {
    waiting = setTimeout(async () => {
      // Errors are ignored: the next request follows.
      if (!document.hidden) await replace(section).then(look).catch(() => {});
      if (!stop.signal.aborted) again();
    }, LOOK_MS);
  };
  again();
  stop.signal.addEventListener('abort', () => clearTimeout(waiting));
  addEventListener('themechange', () => shown.draw(), { signal: stop.signal });
}

onPage(mount);
onWidth(() => map?.draw());
