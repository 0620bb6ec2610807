// Actions on a session or a job: analyze again, pin, rename, archive, delete; and the rules of retention.
import { onPage, refresh } from './app.js';
import { ask } from './ask.js';
import { destroy, destroys } from './destroying.js';
import { count } from './format.js';
import { read, submits } from './forms.js';
import { here } from './here.js';

function mountRegion(region, signal) {
  const address = region.dataset.keep;
  const said = region.querySelector('.said');
  const orders = {
    again: () => ask('POST', `${address}/analyze`),
    pin: () => ask('PUT', `${address}/pin`),
    unpin: () => ask('DELETE', `${address}/pin`),
    archive: () => ask('PATCH', address, { archived: true }),
    unarchive: () => ask('PATCH', address, { archived: false }),
  };
  destroys(region.querySelector('[data-destroys=keep]'), signal, async () => {
    await ask('DELETE', address);
    location.assign(here(region.dataset.after));
  });
  for (const button of region.querySelectorAll('[data-keep-do]')) {
    button.disabled = false;
    button.addEventListener('click', async () => {
      button.disabled = true;
      said.textContent = '';
      try {
        await orders[button.dataset.keepDo]();
        await refresh();
      } catch (error) {
        said.textContent = error.message;
      } finally {
        button.disabled = false;
      }
    }, { signal });
  }
  const form = region.querySelector('form');
  if (!form) return;
  form.querySelector('button').disabled = false;
  form.addEventListener('submit', async (event) => {
    event.preventDefault();
    const name = form.elements.name.value.trim();
    try {
      await ask('PATCH', address, { name });
      location.assign(here(`/jobs/${encodeURIComponent(name)}`));
    } catch (error) {
      said.textContent = error.message;
    }
  }, { signal });
}

const GIB = 2 ** 30;

/** Ask before rules that take away what there is. */
function askFirst(form, losses, save) {
  const titled = (kind) => form.querySelector(`[data-path="${kind}.days"]`).dataset.title.toLowerCase();
  const lost = Object.entries(losses).map(([kind, number]) => `${titled(kind)}: ${count(number)}`);
  destroy({
    title: 'Delete what is over these rules?',
    loses: `Within minutes, the oldest first: ${lost.join('; ')}.`,
    verb: 'Save and delete',
    typed: form.dataset.project,
  }, save);
}

/** The form of a project's rules, with sizes in GiB; the API has bytes. */
function mountRules(form, signal) {
  submits(form, signal, async () => {
    const rules = Object.fromEntries(Object.entries(read(form, { nulls: true })).map(
      ([kind, { days, gib }]) => [kind, { days, bytes: gib === null ? null : Math.round(gib * GIB) }],
    ));
    const save = async () => {
      await ask('PUT', '/api/v1/retention', rules);
      await refresh();
    };
    const { losses } = await ask('POST', '/api/v1/retention/preview', rules);
    if (Object.keys(losses).length) askFirst(form, losses, save);
    else await save();
  }, (error) => (error.faults ?? []).map((fault) => ({ ...fault, column: fault.column?.replace(/bytes$/, 'gib') })));
}

function mount({ main, stop }) {
  const rules = main.querySelector('#retention');
  if (rules) mountRules(rules, stop.signal);
  for (const region of main.querySelectorAll('[data-keep]')) mountRegion(region, stop.signal);
}

onPage(mount);
