// The page of a host: noting a repair.
import { mountedPage, refresh } from '../app.js';
import { ask } from '../ask.js';

async function note(main, form, said) {
  const { what, gpu, at, by } = form.elements;
  said.textContent = '';
  try {
    await ask('POST', `/api/v1/hosts/${encodeURIComponent(main.dataset.host)}/repairs`, {
      what: what.value.trim(),
      ...(gpu.value.trim() ? { gpu: gpu.value.trim() } : {}),
      ...(at.value ? { at: new Date(at.value).toISOString() } : {}),
      ...(by?.value.trim() ? { by: by.value.trim() } : {}),
    });
    await refresh();
  } catch (error) {
    said.textContent = error.faults?.[0]?.message ?? error.message;
  }
}

function mount({ main, stop }) {
  if (main.dataset.view !== 'host') return;
  const form = document.getElementById('repair');
  const button = form.querySelector('button');
  button.disabled = false;
  form.addEventListener('submit', (event) => {
    event.preventDefault();
    button.disabled = true;
    note(main, form, form.querySelector('.said')).finally(() => { button.disabled = false; });
  }, { signal: stop.signal });
}

mount(mountedPage());
addEventListener('pagemounted', (event) => mount(event.detail));
