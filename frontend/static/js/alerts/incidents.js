// Acting on incidents, on their own page and on sessions' pages; the list keeps itself up to date.
import { mountedPage, refresh } from '../app.js';
import { ask } from '../ask.js';
import { follow } from '../follow.js';
import { mountReplays } from './replay.js';

const HOUR_MS = 3_600_000;
const NAME = 'paceline-name';
// Without a name: who acts is then known by the place alone.
const NAMELESS = 'the dashboard';

function remembered() {
  try {
    return localStorage.getItem(NAME) ?? '';
  } catch {
    return '';
  }
}

function remember(name) {
  try {
    localStorage.setItem(NAME, name);
  } catch {
    // Storage may be refused; then the name lasts as long as the page.
  }
}

/** A moment as an input of type datetime-local takes it. */
function local(ms) {
  const moment = new Date(ms - new Date(ms).getTimezoneOffset() * 60_000);
  return moment.toISOString().slice(0, 16);
}

function mountActions(region, signal) {
  const address = `/api/v1/incidents/${region.dataset.incident}`;
  const said = region.querySelector('.said');
  const who = region.querySelector('[data-who]');
  const by = () => who?.value.trim() || NAMELESS;
  const act = async (button, work) => {
    button.disabled = true;
    said.textContent = '';
    try {
      await work();
      await refresh();
    } catch (error) {
      said.textContent = error.message;
    } finally {
      button.disabled = false;
    }
  };
  const orders = {
    ack: () => ask('POST', `${address}/ack`, { by: by() }),
    unsilence: () => ask('DELETE', `${address}/silence?by=${encodeURIComponent(by())}`),
    silence: (form) => ask('POST', `${address}/silence`, { by: by(), reason: form.elements.reason.value.trim(), until: new Date(form.elements.until.value).toISOString() }),
    resolve: (form) => ask('POST', `${address}/resolve`, { by: by(), note: form.elements.note.value.trim() || null }),
  };
  if (who) {
    who.value = remembered();
    who.addEventListener('input', () => remember(who.value.trim()), { signal });
  }
  for (const button of region.querySelectorAll('[data-do]')) {
    button.disabled = false;
    button.addEventListener('click', () => act(button, orders[button.dataset.do]), { signal });
  }
  const forms = [...region.querySelectorAll('form')];
  for (const button of region.querySelectorAll('[data-opens]')) {
    button.disabled = false;
    button.addEventListener('click', () => {
      for (const form of forms) form.hidden = form.dataset.form !== button.dataset.opens || !form.hidden;
      for (const other of region.querySelectorAll('[data-opens]')) {
        other.setAttribute('aria-expanded', String(forms.some((form) => form.dataset.form === other.dataset.opens && !form.hidden)));
      }
      forms.find((form) => !form.hidden)?.querySelector('input').focus();
    }, { signal });
  }
  for (const form of forms) {
    const { until } = form.elements;
    if (until) until.value = local(Date.now() + 4 * HOUR_MS);
    for (const button of form.querySelectorAll('[data-hours]')) {
      button.addEventListener('click', () => { until.value = local(Date.now() + button.dataset.hours * HOUR_MS); }, { signal });
    }
    form.addEventListener('submit', (event) => {
      event.preventDefault();
      act(form.querySelector('[type=submit]'), () => orders[form.dataset.form](form));
    }, { signal });
  }
}

/** What is being filled in must not be taken away. */
const busy = (main) => main.querySelector('form:not([hidden])') || document.activeElement?.matches('input');

function mount({ main, stop }) {
  for (const region of main.querySelectorAll('[data-incident]')) mountActions(region, stop.signal);
  mountReplays(main, stop.signal);
  if (main.dataset.view === 'incidents') follow(main, () => busy(main));
}

mount(mountedPage());
addEventListener('pagemounted', (event) => mount(event.detail));
