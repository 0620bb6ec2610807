// In whose name something is done: the server knows who signed in; others may give themselves a name, which the browser keeps.
const NAME = 'paceline-name';
// Without a name: who acts is then known by the place alone.
const NAMELESS = 'the dashboard';

function remembered() {
  try {
    return localStorage.getItem(NAME) ?? '';
  } catch {
    return '';
  }
}

function remember(name) {
  try {
    localStorage.setItem(NAME, name);
  } catch {
    // Storage may be refused; then the name lasts as long as the page.
  }
}

/** The name that a user entered, if any. */
export function ownName() {
  const field = /** @type {HTMLInputElement | null} */ (document.querySelector('[data-who]'));
  return field?.value.trim() || remembered();
}

/** The name to send along. */
export const by = () => ownName() || NAMELESS;

/** Let the fields for a name on a page be one. */
export function mountNames(main, signal) {
  const fields = [...main.querySelectorAll('[data-who]')];
  for (const field of fields) {
    field.value = remembered();
    field.addEventListener('input', () => {
      remember(field.value.trim());
      for (const other of fields) if (other !== field) other.value = field.value;
    }, { signal });
  }
}
