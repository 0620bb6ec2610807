// Actions on incidents, on their page and on sessions' pages; the list is updated.
import { acting } from '../acting.js';
import { mountOrders } from '../actions/orders.js';
import { onPage, refresh } from '../app.js';
import { ask } from '../ask.js';
import { follow } from '../follow.js';
import { mountList } from './list.js';
import { mountNotes } from './notes.js';
import { mountReplays } from './replay.js';
import { offerUndo } from '../undo.js';
import { ends, mountUntil } from './until.js';
import { by, mountNames } from './who.js';

function mountActions(region, signal) {
  const address = `/api/v1/incidents/${region.dataset.incident}`;
  const act = acting(region.querySelector('.said'));
  const offer = (said, undo) => offerUndo(said, async () => {
    await undo();
    await refresh();
  });
  const orders = {
    ack: async () => {
      await ask('POST', `${address}/ack`, { by: by() });
      offer('Acknowledged', orders.unack);
    },
    unack: () => ask('DELETE', `${address}/ack?by=${encodeURIComponent(by())}`),
    reopen: () => ask('POST', `${address}/reopen`, { by: by() }),
    unsilence: () => ask('DELETE', `${address}/silence?by=${encodeURIComponent(by())}`),
    silence: (form) => ask('POST', `${address}/silence`, { by: by(), reason: form.elements.reason.value.trim(), until: ends(form) }),
    resolve: async (form) => {
      await ask('POST', `${address}/resolve`, { by: by(), note: form.elements.note.value.trim() || null });
      offer('Resolved', orders.reopen);
    },
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

/** Whether a user fills in a form. */
const busy = (main) => main.querySelector('form.ask:not([hidden])')
  || document.activeElement?.matches('input:not([type=checkbox]), select, textarea')
  || main.querySelector('[name=words]')?.value;

function mount({ main, stop }) {
  mountNames(main, stop.signal);
  for (const region of main.querySelectorAll('[data-incident]')) mountActions(region, stop.signal);
  const doing = main.querySelector('#doing');
  if (doing) mountOrders(doing, stop.signal);
  mountReplays(main, stop.signal);
  mountNotes(main, stop.signal);
  mountList(main, stop.signal);
  if (main.dataset.view === 'incidents') follow(main, () => busy(main));
}

onPage(mount);
