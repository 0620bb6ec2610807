// The page of access: creates and revokes tokens and projects.
import { onPage, refresh } from './app.js';
import { ask } from './ask.js';
import { destroys } from './destroying.js';
import { read, submits } from './forms.js';

function made(token) {
  document.getElementById('made-name').textContent = `${token.token.name} was created. Copy it now: it is shown once, and only its hash is stored.`;
  document.getElementById('made-secret').textContent = token.secret;
  document.getElementById('made').hidden = false;
  document.getElementById('made').scrollIntoView({ block: 'nearest' });
}

const RENEWED_DAYS = 90;

function sends(form, address, signal, done) {
  submits(form, signal, async () => {
    const [method, url] = address();
    const answer = await ask(method, url, read(form, { nulls: true }));
    form.reset();
    await done(answer);
  });
}

/** A button that sends a request and refreshes the page. */
function acts(button, said, signal, request) {
  button.disabled = false;
  button.addEventListener('click', async () => {
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
  sends(document.getElementById('token'), () => ['POST', '/api/v1/tokens'], signal, async (answer) => {
    await refresh();
    made(answer);
  });
  sends(document.getElementById('project'), () => ['POST', '/api/v1/projects'], signal, refresh);
  const losing = {
    token: (name) => ask('DELETE', `/api/v1/tokens/${encodeURIComponent(name)}`),
    disable: (person) => ask('PATCH', `/api/v1/people/${person}`, { disabled: true }),
    person: (person) => ask('DELETE', `/api/v1/people/${person}`),
  };
  for (const button of main.querySelectorAll('[data-destroys]')) {
    const [kind, name] = button.dataset.destroys.split(/:(.*)/s);
    destroys(button, signal, async () => {
      await losing[kind](name);
      await refresh();
    });
  }
  for (const button of main.querySelectorAll('[data-renew]')) {
    acts(button, 'revoked', signal, () => ask('POST', `/api/v1/tokens/${encodeURIComponent(button.dataset.renew)}/renew`, { expires_days: RENEWED_DAYS }));
  }
  for (const button of main.querySelectorAll('[data-enable]')) {
    acts(button, 'person-said', signal, () => ask('PATCH', `/api/v1/people/${button.dataset.enable}`, { disabled: false }));
  }
  const role = document.getElementById('role');
  if (!role) return;
  /** @type {HTMLSelectElement} */
  const person = role.querySelector('#role-person');
  sends(role, () => ['PUT', `/api/v1/people/${person.value}/role`], signal, refresh);
}

onPage(mount);
