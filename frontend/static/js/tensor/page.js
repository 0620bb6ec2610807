// The page of a tensor-parallel group: its switch, and following the job's reports.
import { here } from '../here.js';
import { mountedPage, refresh } from '../app.js';
import { follow } from '../follow.js';

const explain = (words) => { document.getElementById('said').textContent = words; };

async function put(main, form, mode) {
  const { max_gamma: budget, expires_after_steps: expires, by } = form.elements;
  const response = await fetch(here(`/api/v1/jobs/${encodeURIComponent(main.dataset.job)}/tp/mode`), {
    method: 'PUT',
    headers: { 'Content-Type': 'application/json' },
    body: JSON.stringify({
      mode,
      max_gamma: budget.value === '' || budget.value === budget.max ? null : Number(budget.value),
      expires_after_steps: Number(expires.value),
      ...(by.value.trim() ? { by: by.value.trim() } : {}),
    }),
  });
  if (response.ok) {
    by.value = '';
    await refresh();
    return;
  }
  const problem = await response.json();
  explain(problem.faults[0]?.message ?? problem.detail);
}

function mount({ main, stop }) {
  if (main.dataset.view !== 'tensor') return;
  const form = document.getElementById('switch-form');
  const button = document.getElementById('switch');
  const mode = () => (button.getAttribute('aria-checked') === 'true' ? 'apply' : 'advise');
  const send = (wanted) => put(main, form, wanted).catch(() => explain('The server does not answer; try again.'));
  button.addEventListener('click', () => send(mode() === 'apply' ? 'advise' : 'apply'), { signal: stop.signal });
  form.addEventListener('submit', (event) => {
    event.preventDefault();
    send(mode());
  }, { signal: stop.signal });
  // What is being filled in must not be taken away.
  const fields = [...form.querySelectorAll('input')];
  follow(main, () => fields.some((field) => field.value !== field.defaultValue));
}

mount(mountedPage());
addEventListener('pagemounted', (event) => mount(event.detail));
