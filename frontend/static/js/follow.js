// A page that keeps itself up to date: it is looked at again now and then, and put in place when it says something new.
import { refresh } from './app.js';

const LOOK_MS = 5000;

let looking = 0;

async function look(main, busy) {
  const response = await fetch(location.href, { headers: { Accept: 'text/html' } });
  if (!response.ok) return;
  const fresh = new DOMParser().parseFromString(await response.text(), 'text/html');
  if (fresh.getElementById('main').dataset.version !== main.dataset.version && !busy()) await refresh();
}

/** Follow the page of `main`, but for as long as it is `busy`: what is being filled in must not be taken away. */
export function follow(main, busy) {
  clearTimeout(looking);
  looking = setTimeout(async () => {
    // A server that is away is asked again.
    if (!document.hidden && !busy()) await look(main, busy).catch(() => {});
    if (main.isConnected) follow(main, busy);
  }, LOOK_MS);
}
