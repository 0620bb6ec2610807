// The name of the acting user: that of the session, else a name that the browser keeps.
import { store, stored } from '../storage.js';

const NAME = 'paceline-name';
// The name of unknown users.
const NAMELESS = 'the dashboard';

const remembered = () => stored(NAME) ?? '';

/** The name that the user entered, or an empty text. */
export function ownName() {
  const field = /** @type {HTMLInputElement | null} */ (document.querySelector('[data-who]'));
  return field?.value.trim() || remembered();
}

/** The name for requests. */
export const by = () => ownName() || NAMELESS;

/** Keep all fields for the name on a page equal. */
export function mountNames(main, signal) {
  const fields = [...main.querySelectorAll('[data-who]')];
  for (const field of fields) {
    field.value = remembered();
    field.addEventListener('input', () => {
      store(NAME, field.value.trim());
      for (const other of fields) if (other !== field) other.value = field.value;
    }, { signal });
  }
}
