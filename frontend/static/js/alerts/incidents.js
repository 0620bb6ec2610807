// Acting on incidents, on their own page and on sessions' pages; the list keeps itself up to date.
import { mountedPage, refresh } from '../app.js';
import { ask } from '../ask.js';
import { follow } from '../follow.js';
import { mountList } from './list.js';
import { mountNotes } from './notes.js';
import { mountReplays } from './replay.js';
import { ends, mountUntil } from './until.js';
import { by, mountNames } from './who.js';

function mountActions(region, signal) {
  const address = `/api/v1/incidents/${region.dataset.incident}`;
  const said = region.querySelector('.said');
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
    silence: (form) => ask('POST', `${address}/silence`, { by: by(), reason: form.elements.reason.value.trim(), until: ends(form) }),
    resolve: (form) => ask('POST', `${address}/resolve`, { by: by(), note: form.elements.note.value.trim() || null }),
  };
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
    mountUntil(form, signal);
    form.addEventListener('submit', (event) => {
      event.preventDefault();
      act(form.querySelector('[type=submit]'), () => orders[form.dataset.form](form));
    }, { signal });
  }
}

/** What is being filled in must not be taken away. */
const busy = (main) => main.querySelector('form.ask:not([hidden])')
  || document.activeElement?.matches('input:not([type=checkbox]), select, textarea')
  || main.querySelector('[name=words]')?.value;

function mount({ main, stop }) {
  mountNames(main, stop.signal);
  for (const region of main.querySelectorAll('[data-incident]')) mountActions(region, stop.signal);
  mountReplays(main, stop.signal);
  mountNotes(main, stop.signal);
  mountList(main, stop.signal);
  if (main.dataset.view === 'incidents') follow(main, () => busy(main));
}

mount(mountedPage());
addEventListener('pagemounted', (event) => mount(event.detail));
