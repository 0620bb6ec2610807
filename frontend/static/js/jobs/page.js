// The fleet: its filters are in the address; selected jobs are archived, renamed or deleted.
import { onPage, refresh } from '../app.js';
import { ask } from '../ask.js';
import { destroy } from '../destroying.js';

const TYPING_MS = 300;
const LOOK_MS = 10_000;
const FIELDS = ['q', 'owner', 'label', 'show', 'sort', 'labels', 'range', 'from', 'to'];

// Selected jobs, kept when the page is replaced.
const picked = new Set();
// Their open form, too.
let opened = '';

/** The address of a form's filters, without empty ones and without the page. */
function addressOf(form) {
  const url = new URL(form.action, location.href);
  const values = new FormData(form);
  for (const name of FIELDS) {
    const words = String(values.get(name) ?? '').trim();
    if (words) url.searchParams.set(name, words);
  }
  return url;
}

function mountFilters(form, signal) {
  let typing = 0;
  const now = () => {
    clearTimeout(typing);
    history.replaceState(null, '', addressOf(form));
    refresh().catch(() => {});
  };
  form.addEventListener('submit', (event) => { event.preventDefault(); now(); }, { signal });
  for (const select of form.querySelectorAll('select')) select.addEventListener('change', now, { signal });
  for (const field of form.querySelectorAll('input:not([type=hidden])')) {
    const soon = () => {
      clearTimeout(typing);
      typing = setTimeout(now, TYPING_MS);
    };
    field.addEventListener('input', soon, { signal });
    // Typed before this script was loaded, or while the list was fetched.
    if (field.value !== field.defaultValue) soon();
  }
  signal.addEventListener('abort', () => clearTimeout(typing));
}

function mountSelection(main, bar, signal) {
  const boxes = [...main.querySelectorAll('[data-pick]')];
  const all = main.querySelector('[data-pick-all]');
  const listed = boxes.filter((box) => box.closest('table') === all?.closest('table'));
  const said = bar.querySelector('.said');
  const forms = [...bar.querySelectorAll('form')];
  const openers = [...bar.querySelectorAll('[data-opens]')];
  const rename = openers.find((opener) => opener.dataset.opens === 'rename');
  const open = (name) => {
    opened = name;
    for (const form of forms) form.hidden = form.dataset.form !== name;
    for (const opener of openers) {
      opener.setAttribute('aria-expanded', String(forms.some((form) => form.dataset.form === opener.dataset.opens && !form.hidden)));
    }
    forms.find((form) => !form.hidden)?.querySelector('input, button').focus();
  };
  const show = () => {
    for (const box of boxes) box.checked = picked.has(box.dataset.pick);
    if (all) {
      const here = listed.filter((box) => box.checked).length;
      all.checked = here > 0 && here === listed.length;
      all.indeterminate = here > 0 && here < listed.length;
    }
    bar.hidden = picked.size === 0;
    bar.querySelector('[data-picked]').textContent = `${picked.size} selected`;
    rename.disabled = picked.size !== 1;
  };
  const changed = () => {
    open('');
    show();
  };
  /** Act on one job after another; failed ones stay selected, and the first reason is shown. */
  const act = async (button, order) => {
    button.disabled = true;
    said.textContent = '';
    let fault = '';
    for (const job of [...picked]) {
      try {
        await order(`/api/v1/jobs/${encodeURIComponent(job)}`);
        picked.delete(job);
      } catch (error) {
        fault ||= `${job}: ${error.message}`;
      }
    }
    button.disabled = false;
    open('');
    await refresh().catch(() => {});
    document.querySelector('[data-bulk] .said').textContent = fault;
  };
  // Jobs that are no longer listed are not selected.
  for (const job of picked) if (!boxes.some((box) => box.dataset.pick === job)) picked.delete(job);
  if (all) {
    all.disabled = false;
    all.addEventListener('change', () => {
      for (const box of listed) picked[all.checked ? 'add' : 'delete'](box.dataset.pick);
      changed();
    }, { signal });
  }
  for (const box of boxes) {
    box.disabled = false;
    box.addEventListener('change', () => { picked[box.checked ? 'add' : 'delete'](box.dataset.pick); changed(); }, { signal });
  }
  bar.querySelector('[data-none]').addEventListener('click', () => { picked.clear(); changed(); }, { signal });
  const archive = bar.querySelector('[data-order=archive]');
  const archived = bar.dataset.archived !== 'true';
  archive.addEventListener('click', () => act(archive, (address) => ask('PATCH', address, { archived })), { signal });
  const deletes = bar.querySelector('[data-delete]');
  deletes.addEventListener('click', () => {
    const names = [...picked];
    const jobs = names.length === 1 ? `the job ${names[0]}` : `${names.length} jobs`;
    destroy({
      title: `Delete ${jobs}?`,
      loses: `${names.join(', ')}: all sessions with their traces, reports and heatmaps; the incidents, marks and notes.`,
      verb: names.length === 1 ? 'Delete job' : `Delete ${jobs}`,
      typed: names.length === 1 ? names[0] : jobs,
    }, () => act(deletes, (address) => ask('DELETE', address)));
  }, { signal });
  for (const opener of openers) {
    opener.addEventListener('click', () => {
      open(opened === opener.dataset.opens ? '' : opener.dataset.opens);
      if (opener === rename) [bar.querySelector('[name=name]').value] = picked;
    }, { signal });
  }
  const orders = {
    rename: (form) => (address) => ask('PATCH', address, { name: form.elements.name.value.trim() }),
  };
  for (const form of forms) {
    form.addEventListener('submit', (event) => {
      event.preventDefault();
      act(form.querySelector('[type=submit]'), orders[form.dataset.form](form));
    }, { signal });
  }
  // Without selected jobs, no form is open.
  open(picked.size > 0 ? opened : '');
  show();
}

/** Jobs that run have other step times soon; whoever is typing or choosing is not disturbed. */
function lookAgain(signal) {
  let waiting = 0;
  const soon = () => {
    waiting = setTimeout(async () => {
      const busy = document.hidden || opened || document.querySelector('dialog[open]') || document.activeElement?.matches('input, select');
      if (!busy) await refresh().catch(() => {});
      // The page that was fetched has a timer of its own.
      if (!signal.aborted) soon();
    }, LOOK_MS);
  };
  soon();
  signal.addEventListener('abort', () => clearTimeout(waiting));
}

function mount({ main, stop }) {
  const form = main.querySelector('#asking');
  const bar = main.querySelector('[data-bulk]');
  if (main.dataset.view !== 'fleet' || !form) return;
  mountFilters(form, stop.signal);
  mountSelection(main, bar, stop.signal);
  if ('live' in main.dataset) lookAgain(stop.signal);
}

onPage(mount);
