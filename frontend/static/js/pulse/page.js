// A job, live: every few seconds its words are replaced, and the map gets the minutes that are new.
import { onPage, onWidth } from '../app.js';
import { here } from '../here.js';
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

/** @type {PulseMap | null} */
let map = null;

function mount({ main, stop }) {
  const section = main.querySelector('[data-live]');
  if (!section) return;
  map = new PulseMap(section.querySelector('.pulse-map'), section.querySelector('.reading'), map, stop.signal);
  const shown = map;
  shown.look().catch(() => {});
  let waiting = 0;
  const again = () => {
    waiting = setTimeout(async () => {
      // Errors are ignored: the next request follows.
      if (!document.hidden) await Promise.all([replace(section), shown.look()]).catch(() => {});
      if (!stop.signal.aborted) again();
    }, LOOK_MS);
  };
  again();
  stop.signal.addEventListener('abort', () => clearTimeout(waiting));
  addEventListener('themechange', () => shown.draw(), { signal: stop.signal });
}

onPage(mount);
onWidth(() => map?.draw());
