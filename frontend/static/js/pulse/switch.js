// Whether a project takes pulses, on its page of what is kept.
import { acting } from '../acting.js';
import { onPage } from '../app.js';
import { ask } from '../ask.js';

function mount({ main, stop }) {
  const region = main.querySelector('#pulses');
  if (!region) return;
  const button = region.querySelector('button');
  const act = acting(region.querySelector('.said'));
  button.disabled = false;
  button.addEventListener('click', () => act(button, () => ask('PUT', '/api/v1/pulse', { on: button.value === 'on' })), { signal: stop.signal });
}

onPage(mount);
