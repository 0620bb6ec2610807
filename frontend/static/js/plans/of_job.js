// Asks for the plan of a session's whole job and goes to its page.
import { onPage } from '../app.js';
import { ask } from '../ask.js';
import { here } from '../here.js';

function mount({ main, stop }) {
  const button = /** @type {HTMLButtonElement | null} */ (main.querySelector('[data-plan-job]'));
  if (!button) return;
  const said = button.parentElement.querySelector('.said');
  button.disabled = false;
  button.addEventListener('click', async () => {
    button.disabled = true;
    said.textContent = '';
    try {
      const { plan } = await ask('POST', `/api/v1/plans/of-session/${button.dataset.planJob}`);
      location.assign(here(`/plans/${plan}`));
    } catch (error) {
      said.textContent = error.message;
    } finally {
      button.disabled = false;
    }
  }, { signal: stop.signal });
}

onPage(mount);
