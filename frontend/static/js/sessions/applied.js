// Records that a fix was applied, or was not.
import { acting } from '../acting.js';
import { onPage } from '../app.js';
import { ask } from '../ask.js';

function mount({ main, stop }) {
  const form = main.querySelector('#apply-fix');
  const api = `/api/v1/sessions/${main.dataset.session}/fixes`;
  const act = acting(main.querySelector('#apply-fix .said'));
  if (form) {
    const button = form.querySelector('[type=submit]');
    button.disabled = false;
    form.addEventListener('submit', (event) => {
      event.preventDefault();
      const { value, selectedOptions } = form.querySelector('select');
      act(button, () => ask('POST', api, { action: value, title: selectedOptions[0].textContent }));
    }, { signal: stop.signal });
  }
  for (const button of main.querySelectorAll('[data-unapply]')) {
    button.disabled = false;
    button.addEventListener('click', () => {
      const of = `${api}/${button.dataset.unapply}?title=${encodeURIComponent(button.dataset.fix)}`;
      act(button, () => ask('DELETE', of));
    }, { signal: stop.signal });
  }
}

onPage(mount);
