// Sends failed deliveries again.
import { refresh } from '../app.js';
import { ask } from '../ask.js';

export function mountReplays(main, signal) {
  for (const button of main.querySelectorAll('[data-replay]')) {
    button.disabled = false;
    button.addEventListener('click', async () => {
      button.disabled = true;
      try {
        await ask('POST', `/api/v1/deliveries/${button.dataset.replay}/replay`);
        await refresh();
      } catch (error) {
        button.replaceWith(error.message);
      }
    }, { signal });
  }
}
