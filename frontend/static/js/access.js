// The page of access: tokens and projects are made and revoked here.
import { mountedPage, refresh } from './app.js';
import { ask } from './ask.js';
import { clearFaults, read, showFaults } from './forms.js';

function made(token) {
  document.getElementById('made-name').textContent = `${token.token.name} was made. Copy it now; it is shown once and stored only as a hash.`;
  document.getElementById('made-secret').textContent = token.secret;
  document.getElementById('made').hidden = false;
  document.getElementById('made').scrollIntoView({ block: 'nearest' });
}

function submits(form, url, signal, done) {
  const button = form.querySelector('button[type=submit]');
  const said = form.querySelector('p > .said');
  button.disabled = false;
  form.addEventListener('submit', async (event) => {
    event.preventDefault();
    clearFaults(form);
    said.textContent = '';
    button.disabled = true;
    try {
      const answer = await ask('POST', url, read(form, { nulls: true }));
      form.reset();
      await done(answer);
    } catch (error) {
      said.textContent = showFaults(form, error.faults ?? []) || (error.faults?.length ? '' : error.message);
    } finally {
      button.disabled = false;
    }
  }, { signal });
}

function mount({ main, stop }) {
  if (main.dataset.view !== 'access') return;
  const { signal } = stop;
  submits(document.getElementById('token'), '/api/v1/tokens', signal, async (answer) => {
    await refresh();
    made(answer);
  });
  submits(document.getElementById('project'), '/api/v1/projects', signal, refresh);
  for (const button of main.querySelectorAll('[data-revoke]')) {
    button.disabled = false;
    button.addEventListener('click', async () => {
      button.disabled = true;
      try {
        await ask('DELETE', `/api/v1/tokens/${encodeURIComponent(button.dataset.revoke)}`);
        await refresh();
      } catch (error) {
        document.getElementById('revoked').textContent = error.message;
        button.disabled = false;
      }
    }, { signal });
  }
}

mount(mountedPage());
addEventListener('pagemounted', (event) => mount(event.detail));
