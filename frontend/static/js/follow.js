// A page that is fetched periodically, and replaced when its version changes.
import { fetchPage, refresh } from './app.js';

const LOOK_MS = 5000;

let looking = 0;

async function look(main, busy) {
  const fresh = await fetchPage();
  if (fresh && fresh.getElementById('main').dataset.version !== main.dataset.version && !busy()) await refresh();
}

/** Follow the page of `main`, except while it is `busy`, as when a user fills in a form. */
export function follow(main, busy) {
  clearTimeout(looking);
  looking = setTimeout(async () => {
    // Errors are ignored: the next request follows.
    if (!document.hidden && !busy()) await look(main, busy).catch(() => {});
    if (main.isConnected) follow(main, busy);
  }, LOOK_MS);
}
