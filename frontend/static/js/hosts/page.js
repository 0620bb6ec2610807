// The page of a host: records repairs.
import { acting, faultOf } from '../acting.js';
import { onPage } from '../app.js';
import { ask } from '../ask.js';
import { moment } from '../ranges.js';

function mount({ main, stop }) {
  if (main.dataset.view !== 'host') return;
  const form = main.querySelector('#repair');
  const button = form.querySelector('button');
  button.disabled = false;
  form.addEventListener('submit', (event) => {
    event.preventDefault();
    const { what, gpu, at, by } = form.elements;
    acting(form.querySelector('.said'), faultOf)(button, () => ask('POST', `/api/v1/hosts/${encodeURIComponent(main.dataset.host)}/repairs`, {
      what: what.value.trim(),
      ...(gpu.value.trim() ? { gpu: gpu.value.trim() } : {}),
      ...(at.value ? { at: moment(at.value) } : {}),
      ...(by?.value.trim() ? { by: by.value.trim() } : {}),
    }));
  }, { signal: stop.signal });
}

onPage(mount);
