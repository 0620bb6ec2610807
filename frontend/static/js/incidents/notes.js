// The assignee and the comments of an incident.
import { acting } from '../acting.js';
import { ask } from '../ask.js';
import { by, ownName } from './who.js';

function mountAssignee(region, signal) {
  const address = `/api/v1/incidents/${region.dataset.incidentNotes}/assignee`;
  const said = region.querySelector('[role=alert]');
  const form = region.querySelector('form');
  const opener = region.querySelector('[data-opens-assign]');
  const open = () => {
    form.hidden = !form.hidden;
    opener.setAttribute('aria-expanded', String(!form.hidden));
    if (!form.hidden) form.elements.to.focus();
  };
  const give = (button, to) => acting(said)(button, () => ask('PUT', address, { to, by: by() }));
  const take = region.querySelector('[data-take]');
  const release = region.querySelector('[data-release]');
  for (const button of region.querySelectorAll('button')) button.disabled = false;
  opener.addEventListener('click', open, { signal });
  take?.addEventListener('click', () => {
    const me = region.dataset.me || ownName();
    // An unknown user enters a name.
    if (me) give(take, me);
    else if (form.hidden) open();
  }, { signal });
  release?.addEventListener('click', () => give(release, null), { signal });
  form.addEventListener('submit', (event) => {
    event.preventDefault();
    give(form.querySelector('[type=submit]'), form.elements.to.value.trim() || null);
  }, { signal });
}

function mountComments(region, signal) {
  const form = region.querySelector('form');
  const button = form.querySelector('button');
  const { words } = form.elements;
  button.disabled = false;
  form.addEventListener('submit', (event) => {
    event.preventDefault();
    acting(region.querySelector('[role=alert]'))(button, async () => {
      await ask('POST', `/api/v1/incidents/${region.dataset.comments}/comments`, { words: words.value.trim(), by: by() });
      words.value = '';
    });
  }, { signal });
}

export function mountNotes(main, signal) {
  for (const region of main.querySelectorAll('[data-incident-notes]')) mountAssignee(region, signal);
  for (const region of main.querySelectorAll('[data-comments]')) mountComments(region, signal);
}
