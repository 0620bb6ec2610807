// The sign-in remembers the name that was used last in this browser; the password is none of its business.
import { store, stored } from './storage.js';

const KEPT = 'user-name';

const name = /** @type {HTMLInputElement} */ (document.getElementById('name'));
const password = document.getElementById('password');

const before = stored(KEPT);
if (before && !name.value) {
  name.value = before;
  // Before or after the browser has focused the name by itself.
  if (name.autofocus) password.focus();
}
name.form.addEventListener('submit', () => store(KEPT, name.value.trim()));
