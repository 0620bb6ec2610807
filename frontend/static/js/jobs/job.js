// The page of a job: notes on its time axis.
import { by } from '../incidents/who.js';
import { acting, faultOf } from '../acting.js';
import { onPage, refresh } from '../app.js';
import { ask } from '../ask.js';
import { destroys } from '../destroying.js';
import { moment } from '../ranges.js';

function mountRecording({ main, stop }) {
  const line = main.querySelector('#record');
  if (!line) return;
  const button = line.querySelector('button');
  const act = acting(line.querySelector('.said'), faultOf);
  button.disabled = false;
  button.addEventListener('click', () => act(button, async () => {
    await ask('POST', `/api/v1/jobs/${encodeURIComponent(line.dataset.job)}/recordings`, { by: by() });
    await refresh();
  }), { signal: stop.signal });
}

function mount({ main, stop }) {
  const form = main.querySelector('#note');
  if (!form) return;
  const address = `/api/v1/jobs/${encodeURIComponent(form.dataset.job)}/notes`;
  const act = acting(form.querySelector('.said'), faultOf);
  const add = form.querySelector('[type=submit]');
  add.disabled = false;
  form.addEventListener('submit', (event) => {
    event.preventDefault();
    const { text, kind, at } = form.elements;
    act(add, () => ask('POST', address, {
      text: text.value,
      kind: kind.value,
      ...(at.value ? { at: moment(at.value) } : {}),
      by: by(),
    }));
  }, { signal: stop.signal });
  for (const button of main.querySelectorAll('.marks [data-destroys]')) {
    destroys(button, stop.signal, async () => {
      await ask('DELETE', `${address}/${button.dataset.destroys}`);
      await refresh();
    });
  }
}

onPage(mount);
onPage(mountRecording);
