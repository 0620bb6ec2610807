// Ends of silences: a time in the reader's time zone, and buttons for usual durations.
import { local, moment } from '../ranges.js';

const HOUR_MS = 3_600_000;
const USUAL_H = 4;

/** Fill in the end of a silence, and let buttons change it. */
export function mountUntil(form, signal) {
  const { until } = form.elements;
  if (!until) return;
  until.value = local(Date.now() + USUAL_H * HOUR_MS);
  for (const button of form.querySelectorAll('[data-hours]')) {
    button.addEventListener('click', () => { until.value = local(Date.now() + button.dataset.hours * HOUR_MS); }, { signal });
  }
}

export const ends = (form) => moment(form.elements.until.value);
