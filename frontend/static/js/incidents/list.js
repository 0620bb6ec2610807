// The list of incidents: its filters are in the address; actions apply to all selected incidents.
import { refresh } from '../app.js';
import { ask } from '../ask.js';
import { offerUndo } from '../undo.js';
import { by, ownName } from './who.js';
import { ends, mountUntil } from './until.js';

const TYPING_MS = 300;
const ORDERS = '/api/v1/incidents/orders';

// What takes an order back, and what it has done.
const BACK = { acknowledge: ['unacknowledge', 'acknowledged'], resolve: ['reopen', 'resolved'] };

// Selected incidents, kept when the page is replaced.
const picked = new Set();

/** The address of a form's filters, without empty ones. */
function addressOf(form) {
  const url = new URL(form.action, location.href);
  for (const [name, value] of new FormData(form)) {
    const words = String(value).trim();
    if (words) url.searchParams.set(name, words);
  }
  return url;
}

function mountFilters(form, signal) {
  form.addEventListener('submit', (event) => {
    event.preventDefault();
    location.assign(addressOf(form));
  }, { signal });
  for (const select of form.querySelectorAll('select')) {
    select.addEventListener('change', () => location.assign(addressOf(form)), { signal });
  }
  let typing = 0;
  const words = form.querySelector('[name=q]');
  words.addEventListener('input', () => {
    clearTimeout(typing);
    typing = setTimeout(() => {
      history.replaceState(null, '', addressOf(form));
      refresh().catch(() => {});
    }, TYPING_MS);
  }, { signal });
  signal.addEventListener('abort', () => clearTimeout(typing));
}

function mountSelection(main, bar, signal) {
  const boxes = [...main.querySelectorAll('[data-pick]')];
  const all = main.querySelector('[data-pick-all]');
  const said = bar.querySelector('.said');
  const forms = [...bar.querySelectorAll('form')];
  const openers = [...bar.querySelectorAll('[data-asks]')];
  // Incidents that are no longer listed are not selected.
  for (const id of picked) if (!boxes.some((box) => box.dataset.pick === id)) picked.delete(id);
  const show = () => {
    for (const box of boxes) box.checked = picked.has(box.dataset.pick);
    all.checked = boxes.length > 0 && picked.size === boxes.length;
    all.indeterminate = picked.size > 0 && picked.size < boxes.length;
    bar.hidden = picked.size === 0;
    bar.querySelector('[data-picked]').textContent = `${picked.size} selected`;
  };
  const open = (name) => {
    for (const form of forms) form.hidden = form.dataset.form !== name || !form.hidden;
    for (const other of openers) {
      other.setAttribute('aria-expanded', String(forms.some((form) => form.dataset.form === other.dataset.asks && !form.hidden)));
    }
    forms.find((form) => !form.hidden)?.querySelector('input').focus();
  };
  const act = async (button, order) => {
    button.disabled = true;
    said.textContent = '';
    try {
      const { changed, left } = await ask('POST', ORDERS, { by: by(), incidents: [...picked], ...order });
      const back = BACK[order.order];
      if (back && changed.length) {
        offerUndo(`${changed.length} ${back[1]}`, async () => {
          await ask('POST', ORDERS, { by: by(), incidents: changed, order: back[0] });
          await refresh();
        });
      }
      picked.clear();
      for (const { id } of left) picked.add(id);
      await refresh();
      if (left.length) document.querySelector('[data-bulk] .said').textContent = `${left.length} unchanged: ${left[0].why}`;
    } catch (error) {
      said.textContent = error.message;
    } finally {
      button.disabled = false;
    }
  };
  const orders = {
    silence: (form) => ({ order: 'silence', reason: form.elements.reason.value.trim(), until: ends(form) }),
    assign: (form) => ({ order: 'assign', to: form.elements.to.value.trim() || null }),
    resolve: (form) => ({ order: 'resolve', note: form.elements.note.value.trim() || null }),
  };
  all.disabled = false;
  all.addEventListener('change', () => {
    for (const box of boxes) picked[all.checked ? 'add' : 'delete'](box.dataset.pick);
    show();
  }, { signal });
  for (const box of boxes) {
    box.disabled = false;
    box.addEventListener('change', () => { picked[box.checked ? 'add' : 'delete'](box.dataset.pick); show(); }, { signal });
  }
  bar.querySelector('[data-none]').addEventListener('click', () => { picked.clear(); show(); }, { signal });
  const acknowledge = bar.querySelector('[data-many]');
  acknowledge.addEventListener('click', () => act(acknowledge, { order: acknowledge.dataset.many }), { signal });
  for (const opener of openers) {
    opener.addEventListener('click', () => {
      open(opener.dataset.asks);
      const to = bar.querySelector('[name=to]');
      if (!to.value) to.value = ownName();
    }, { signal });
  }
  for (const form of forms) {
    mountUntil(form, signal);
    form.addEventListener('submit', (event) => {
      event.preventDefault();
      act(form.querySelector('[type=submit]'), orders[form.dataset.form](form));
    }, { signal });
  }
  show();
}

export function mountList(main, signal) {
  const form = main.querySelector('#asking');
  const bar = main.querySelector('[data-bulk]');
  if (form) mountFilters(form, signal);
  if (bar) mountSelection(main, bar, signal);
  else picked.clear();
}
