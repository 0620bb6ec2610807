// The page of a tensor-parallel group: its switch, and updates after the job's reports.
import { faultOf } from '../acting.js';
import { onPage, refresh } from '../app.js';
import { ask } from '../ask.js';
import { follow } from '../follow.js';

const explain = (words) => { document.getElementById('said').textContent = words; };

async function put(main, form, mode) {
  const { max_gamma: budget, expires_after_steps: expires, by } = form.elements;
  await ask('PUT', `/api/v1/jobs/${encodeURIComponent(main.dataset.job)}/tp/mode`, {
    mode,
    max_gamma: budget.value === '' || budget.value === budget.max ? null : Number(budget.value),
    expires_after_steps: Number(expires.value),
    ...(by.value.trim() ? { by: by.value.trim() } : {}),
  });
  by.value = '';
  await refresh();
}

function mount({ main, stop }) {
  if (main.dataset.view !== 'tensor') return;
  const form = document.getElementById('switch-form');
  const button = document.getElementById('switch');
  const mode = () => (button.getAttribute('aria-checked') === 'true' ? 'apply' : 'advise');
  const send = (wanted) => put(main, form, wanted).catch((error) => explain(faultOf(error)));
  button.addEventListener('click', () => send(mode() === 'apply' ? 'advise' : 'apply'), { signal: stop.signal });
  form.addEventListener('submit', (event) => {
    event.preventDefault();
    send(mode());
  }, { signal: stop.signal });
  // Not while a user fills in the form.
  const fields = [...form.querySelectorAll('input')];
  follow(main, () => fields.some((field) => field.value !== field.defaultValue));
}

onPage(mount);
