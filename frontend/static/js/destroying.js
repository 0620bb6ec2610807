// What destroys asks first, in a dialog that names what is lost. No double click confirms it: the
// button is armed after a moment, and takes no second click of a series.
import { make } from './palette.js';

const ARMED_AFTER_MS = 600;

/**
 * Ask, then run `work`; its error is shown in the dialog, which stays open.
 *
 * @param {{title: string, loses: string, verb: string, typed?: string}} what
 * @param {() => Promise<unknown>} work
 */
export function destroy({ title, loses, verb, typed = '' }, work) {
  const said = make('p', { class: 'said', role: 'alert' });
  const doing = make('button', { type: 'submit', class: 'destroys', disabled: '' }, verb);
  const cancel = make('button', { type: 'button' }, 'Cancel');
  const field = typed ? make('input', { type: 'text', autocomplete: 'off', spellcheck: 'false' }) : null;
  const label = field ? make('label', {}, make('span', {}, 'Type ', make('b', {}, typed), ' to confirm'), field) : '';
  const form = make('form', { class: 'destroying', method: 'dialog' }, make('p', {}, loses), label, said, make('div', { class: 'actions' }, cancel, doing));
  const dialog = make('dialog', { class: 'palette', 'aria-label': title }, make('h2', { class: 't' }, title), form);
  let armed = false;
  const fit = () => { doing.disabled = !armed || (field !== null && field.value.trim() !== typed); };
  // Never under a pointer that rests where the first click was: it leaves the button first.
  const arm = () => {
    if (doing.matches(':hover')) return;
    armed = true;
    fit();
  };
  setTimeout(() => {
    arm();
    dialog.addEventListener('pointermove', arm);
    dialog.addEventListener('keydown', () => { armed = true; fit(); });
    // A second click of a double click has taken the focus away.
    if (!form.contains(document.activeElement)) (field ?? cancel).focus();
  }, ARMED_AFTER_MS);
  field?.addEventListener('input', fit);
  doing.addEventListener('click', (event) => { if (event.detail > 1) event.preventDefault(); });
  cancel.addEventListener('click', () => dialog.close());
  dialog.addEventListener('close', () => dialog.remove());
  form.addEventListener('submit', async (event) => {
    event.preventDefault();
    if (doing.disabled) return;
    doing.disabled = true;
    said.textContent = '';
    try {
      await work();
      dialog.close();
    } catch (error) {
      said.textContent = error.message;
      fit();
    }
  });
  document.body.append(dialog);
  dialog.showModal();
  (field ?? cancel).focus();
}

/** Let a button with `data-title`, `data-loses` and `data-typed` (empty where nothing is) destroy. */
export function destroys(button, signal, work) {
  button.disabled = false;
  button.addEventListener('click', () => {
    const { title, loses, typed, verb } = button.dataset;
    destroy({ title, loses, typed, verb }, work);
  }, { signal });
}
