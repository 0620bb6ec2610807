// What a person says to actions on machines: approve, decline, undo.
import { acting } from '../acting.js';
import { ask } from '../ask.js';

/** Let the buttons of a region send their orders; errors are shown in its `said`. */
export function mountOrders(region, signal) {
  const act = acting(region.querySelector('.said'));
  for (const button of region.querySelectorAll('[data-order]')) {
    button.disabled = false;
    button.addEventListener('click', () => act(button, () => ask('POST', `/api/v1/actions/${button.dataset.action}/${button.dataset.order}`)), { signal });
  }
}
