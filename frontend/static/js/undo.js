// Ten seconds in which what was just settled can be taken back, by a button or by the key `u`.
import { make } from './palette.js';

const FOR_MS = 10_000;

let shown = null;

/** Say what was done, and offer to take it back; `undo` does that. */
export function offerUndo(said, undo) {
  shown?.close();
  const words = make('span', {}, said);
  const button = make('button', { type: 'button', 'aria-keyshortcuts': 'u' }, 'Undo');
  // Outside of the page, which may be fetched again meanwhile.
  const toast = make('div', { class: 'toast', role: 'status' }, words, button);
  const close = () => {
    clearTimeout(ends);
    toast.remove();
    if (shown?.toast === toast) shown = null;
  };
  const ends = setTimeout(close, FOR_MS);
  button.addEventListener('click', async () => {
    clearTimeout(ends);
    button.disabled = true;
    try {
      await undo();
      close();
    } catch (error) {
      words.textContent = error.message;
      button.remove();
      setTimeout(close, FOR_MS);
    }
  });
  shown = { toast, button, close };
  document.body.append(toast);
}

/** Take the latest back, where its time is not over. */
export const undoLatest = () => shown?.button.click();
