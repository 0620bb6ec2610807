// The page of access: creates and revokes tokens and projects.
import { onPage, refresh } from './app.js';
import { ask } from './ask.js';
import { clearFaults, read, showFaults } from './forms.js';

function made(token) {
  document.getElementById('made-name').textContent = `${token.token.name} was created. Copy it now: it is shown once, and only its hash is stored.`;
  document.getElementById('made-secret').textContent = token.secret;
  document.getElementById('made').hidden = false;
  document.getElementById('made').scrollIntoView({ block: 'nearest' });
}

const RENEWED_DAYS = 90;

function submits(form, address, signal, done) {
  const button = form.querySelector('button[type=submit]');
  const said = form.querySelector('p > .said');
  button.disabled = false;
  form.addEventListener('submit', async (event) => {
    event.preventDefault();
    clearFaults(form);
    said.textContent = '';
    button.disabled = true;
    try {
      const [method, url] = address();
      const answer = await ask(method, url, read(form, { nulls: true }));
      form.reset();
      await done(answer);
    } catch (error) {
      said.textContent = showFaults(form, error.faults ?? []) || (error.faults?.length ? '' : error.message);
    } finally {
      button.disabled = false;
    }
  }, { signal });
}

/** A button that sends a request and refreshes the page; some need a second click. */
function acts(button, said, signal, request) {
  button.disabled = false;
  button.addEventListener('click', async () => {
    if (button.dataset.sure && button.textContent !== button.dataset.sure) {
      button.textContent = button.dataset.sure;
      return;
    }
    button.disabled = true;
    try {
      await request();
      await refresh();
    } catch (error) {
      document.getElementById(said).textContent = error.message;
      button.disabled = false;
    }
  }, { signal });
}

function mount({ main, stop }) {
  if (main.dataset.view !== 'access') return;
  const { signal } = stop;
  submits(document.getElementById('token'), () => ['POST', '/api/v1/tokens'], signal, async (answer) => {
    await refresh();
    made(answer);
  });
  submits(document.getElementById('project'), () => ['POST', '/api/v1/projects'], signal, refresh);
  for (const button of main.querySelectorAll('[data-revoke]')) {
    acts(button, 'revoked', signal, () => ask('DELETE', `/api/v1/tokens/${encodeURIComponent(button.dataset.revoke)}`));
  }
  for (const button of main.querySelectorAll('[data-renew]')) {
    acts(button, 'revoked', signal, () => ask('POST', `/api/v1/tokens/${encodeURIComponent(button.dataset.renew)}/renew`, { expires_days: RENEWED_DAYS }));
  }
  for (const button of main.querySelectorAll('[data-person]')) {
    const url = `/api/v1/people/${button.dataset.person}`;
    const { disabled } = button.dataset;
    acts(button, 'person-said', signal, () => (disabled ? ask('PATCH', url, { disabled: disabled === 'true' }) : ask('DELETE', url)));
  }
  const role = document.getElementById('role');
  if (!role) return;
  /** @type {HTMLSelectElement} */
  const person = role.querySelector('#role-person');
  submits(role, () => ['PUT', `/api/v1/people/${person.value}/role`], signal, refresh);
}

onPage(mount);
