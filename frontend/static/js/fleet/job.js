// The page of a job: notes on its time axis.
import { by } from '../alerts/who.js';
import { mountedPage, refresh } from '../app.js';
import { ask } from '../ask.js';

function mount({ main, stop }) {
  const form = main.querySelector('#note');
  if (!form) return;
  const address = `/api/v1/jobs/${encodeURIComponent(form.dataset.job)}/notes`;
  const said = form.querySelector('.said');
  const act = async (button, work) => {
    button.disabled = true;
    said.textContent = '';
    try {
      await work();
      await refresh();
    } catch (error) {
      said.textContent = error.faults?.[0]?.message ?? error.message;
    } finally {
      button.disabled = false;
    }
  };
  const add = form.querySelector('[type=submit]');
  add.disabled = false;
  form.addEventListener('submit', (event) => {
    event.preventDefault();
    const { text, kind, at } = form.elements;
    act(add, () => ask('POST', address, {
      text: text.value,
      kind: kind.value,
      ...(at.value ? { at: new Date(at.value).toISOString() } : {}),
      by: by(),
    }));
  }, { signal: stop.signal });
  for (const button of main.querySelectorAll('[data-note]')) {
    button.disabled = false;
    button.addEventListener('click', () => act(button, () => ask('DELETE', `${address}/${button.dataset.note}`)), { signal: stop.signal });
  }
}

mount(mountedPage());
addEventListener('pagemounted', (event) => mount(event.detail));
