// Says that a fix was applied, and takes that back.
import { mountedPage, refresh } from '../app.js';
import { ask } from '../ask.js';

function mount({ main, stop }) {
  const form = main.querySelector('#apply-fix');
  const api = `/api/v1/sessions/${main.dataset.session}/fixes`;
  const said = main.querySelector('#apply-fix .said');
  const act = async (button, work) => {
    button.disabled = true;
    try {
      await work();
      await refresh();
    } catch (error) {
      if (said) said.textContent = error.message;
    } finally {
      button.disabled = false;
    }
  };
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

mount(mountedPage());
addEventListener('pagemounted', (event) => mount(event.detail));
