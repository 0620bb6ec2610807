// The page of channels: test, enable, disable, add, change and delete them.
import { here } from '../here.js';
import { onPage, refresh } from '../app.js';
import { ask } from '../ask.js';
import { destroys } from '../destroying.js';
import { follow } from '../follow.js';
import { clearFaults, read, submits } from '../forms.js';
import { mountReplays } from './replay.js';

const CHANNELS = '/api/v1/channels';
const NAME_TAKEN = 'channel.name_taken';

// Results of tests by element, kept when the page is replaced.
const results = new Map();

function paragraph(words, name = '') {
  const made = document.createElement('p');
  made.textContent = words;
  made.className = name;
  return made;
}

/** The result of a test, with the receiver's answer. */
function shown(result) {
  const status = result.status === null ? '' : ` ${result.status}`;
  const head = result.delivered ? `Delivered: the receiver answered${status}.` : result.error;
  /** @type {HTMLElement[]} */
  const parts = [paragraph(head, result.delivered ? 'good' : 'bad')];
  if (result.answer) {
    const answer = document.createElement('pre');
    answer.className = 'answer';
    answer.textContent = result.answer;
    parts.push(answer);
  }
  return parts;
}

function mountTests(main, signal) {
  for (const [id, parts] of results) document.getElementById(id)?.replaceChildren(...parts);
  for (const button of main.querySelectorAll('[data-test]')) {
    button.disabled = false;
    const show = (parts) => {
      results.set(button.dataset.result, parts);
      document.getElementById(button.dataset.result)?.replaceChildren(...parts);
    };
    button.addEventListener('click', async () => {
      button.disabled = true;
      show([paragraph('Sending an example…', 'note')]);
      try {
        show(shown(await ask('POST', `${CHANNELS}/${button.dataset.test}/test`)));
      } catch (error) {
        show([paragraph(error.message, 'bad')]);
      } finally {
        button.disabled = false;
      }
    }, { signal });
  }
}

function mountChosen(region, signal) {
  const address = `${CHANNELS}/${region.dataset.channel}`;
  const said = region.querySelector('.said');
  const act = async (button, work) => {
    button.disabled = true;
    said.textContent = '';
    try {
      await work();
    } catch (error) {
      said.textContent = error.message;
      button.disabled = false;
    }
  };
  const toggle = region.querySelector('[data-enable]');
  toggle.disabled = false;
  toggle.addEventListener('click', () => act(toggle, async () => {
    await ask('PATCH', address, { enabled: toggle.dataset.enable === 'true' });
    await refresh();
  }), { signal });
  destroys(region.querySelector('[data-destroys]'), signal, async () => {
    await ask('DELETE', address);
    location.assign(here('/channels'));
  });
}

function mountSettings(form, signal) {
  const { channel } = form.dataset;
  const kind = form.querySelector('#kind');
  const choose = () => {
    for (const fields of form.querySelectorAll('[data-kind]')) {
      fields.hidden = fields.disabled = fields.dataset.kind !== kind.value;
    }
  };
  if (kind) {
    // Browsers keep the selection after back.
    choose();
    kind.addEventListener('change', () => {
      clearFaults(form);
      choose();
    }, { signal });
  }
  form.addEventListener('input', () => { form.dataset.changed = ''; }, { signal });
  submits(form, signal, async () => {
    const name = form.querySelector('#name').value.trim();
    const body = { ...read(form, { nulls: Boolean(channel) }), name };
    if (channel) {
      await ask('PATCH', `${CHANNELS}/${channel}`, body);
      results.clear();
      await refresh();
      document.querySelector('[data-saved]').textContent = 'Saved.';
    } else {
      const added = await ask('POST', CHANNELS, body);
      location.assign(here(`/channels/${added.id}`));
    }
  }, (error) => (error.code === NAME_TAKEN ? [{ column: 'name', message: error.message }] : error.faults ?? []));
}

/** Whether a user fills in a form. */
const busy = (main) => main.querySelector('#settings[data-changed]')
  || document.activeElement?.matches('input, select, textarea');

function mount({ main, stop }) {
  mountTests(main, stop.signal);
  mountReplays(main, stop.signal);
  const chosen = document.getElementById('chosen');
  if (chosen) mountChosen(chosen, stop.signal);
  const settings = document.getElementById('settings');
  if (settings) mountSettings(settings, stop.signal);
  follow(main, () => busy(main));
}

onPage(mount);
