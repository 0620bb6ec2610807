// Buttons that send a request: disabled meanwhile; then the page is fetched again, or an error is shown.
import { refresh } from './app.js';

/** The message of the first fault of a request, or of the request. */
export const faultOf = (error) => error.faults?.[0]?.message ?? error.message;

/** A function that runs the work of a button and shows its error in `said`. */
export const acting = (said, message = (error) => error.message) => async (button, work) => {
  button.disabled = true;
  if (said) said.textContent = '';
  try {
    await work();
    await refresh();
  } catch (error) {
    if (said) said.textContent = message(error);
  } finally {
    button.disabled = false;
  }
};
