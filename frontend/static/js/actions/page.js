// The page of actions on machines: what a person says to each, the kill switch, and the policies.
import { acting, faultOf } from '../acting.js';
import { onPage, refresh } from '../app.js';
import { ask } from '../ask.js';
import { follow } from '../follow.js';
import { read, submits } from '../forms.js';
import { mountOrders } from './orders.js';

function mountSwitch(region, signal) {
  const form = region.querySelector('form');
  const button = form.querySelector('[type=submit]');
  const act = acting(region.querySelector('.said'), faultOf);
  button.disabled = false;
  form.addEventListener('submit', (event) => {
    event.preventDefault();
    const reason = form.elements.reason?.value.trim();
    act(button, () => ask('PUT', '/api/v1/action-switch', { stopped: form.dataset.stopped === 'true', ...(reason ? { reason } : {}) }));
  }, { signal });
}

function mountPolicy(form, signal) {
  form.addEventListener('input', () => { form.dataset.changed = ''; }, { signal });
  submits(form, signal, async () => {
    const { mode, config = {} } = read(form, { nulls: true });
    await ask('PUT', '/api/v1/action-policies', { kind: form.dataset.policy, mode, config });
    await refresh();
  });
}

/** Whether a user fills in a form. */
const busy = (main) => main.querySelector('[data-changed]')
  || document.activeElement?.matches('input, select, textarea');

function mount({ main, stop }) {
  if (main.dataset.view !== 'actions') return;
  mountOrders(main.querySelector('#list'), stop.signal);
  mountSwitch(main.querySelector('#switch'), stop.signal);
  for (const form of main.querySelectorAll('[data-policy]')) mountPolicy(form, stop.signal);
  follow(main, () => busy(main));
}

onPage(mount);
