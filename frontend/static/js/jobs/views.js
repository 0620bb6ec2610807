// Saved views of the fleet: saved, renamed and deleted; a link opens one for everyone.
import { acting } from '../acting.js';
import { onPage, refresh } from '../app.js';
import { ask } from '../ask.js';
import { destroys } from '../destroying.js';

const VIEWS = '/api/v1/views';

function mount({ main, stop }) {
  const bar = main.querySelector('#views');
  if (!bar) return;
  const form = bar.querySelector('form');
  const opener = bar.querySelector('[data-opens]');
  const act = acting(bar.querySelector('.said'), (error) => error.message);
  opener.disabled = false;
  opener.addEventListener('click', () => {
    form.hidden = !form.hidden;
    opener.setAttribute('aria-expanded', String(!form.hidden));
    if (!form.hidden) form.elements.name.focus();
  }, { signal: stop.signal });
  form.addEventListener('submit', (event) => {
    event.preventDefault();
    const name = form.elements.name.value.trim();
    const { view } = form.dataset;
    act(form.querySelector('[type=submit]'), () => (view
      ? ask('PATCH', `${VIEWS}/${view}`, { name })
      : ask('POST', VIEWS, { name, query: bar.dataset.query })));
  }, { signal: stop.signal });
  for (const button of bar.querySelectorAll('[data-destroys]')) {
    button.disabled = false;
    destroys(button, stop.signal, async () => {
      await ask('DELETE', `${VIEWS}/${button.dataset.destroys}`);
      await refresh();
    });
  }
}

onPage(mount);
