// The time range of a page; choosing another one keeps the rest of the address.
const NAMES = ['range', 'from', 'to', 'page'];

/**
 * A time as the value of a datetime-local input, in the reader's time zone; empty for NaN.
 * @param {number} ms
 */
export const local = (ms) => zone.local(ms);

/**
 * The moment that such an input holds, for the API.
 * @param {string} value
 */
export const moment = (value) => new Date(zone.read(value)).toISOString();

/** The value of such an input for the address; empty if it is.
 * @param {string} value
 */
export const written = (value) => (value ? `${moment(value).slice(0, 16)}Z` : '');

function go(change) {
  const url = new URL(location.href);
  for (const name of NAMES) url.searchParams.delete(name);
  for (const [name, value] of Object.entries(change)) if (value) url.searchParams.set(name, value);
  location.assign(url);
}

/** A form that asks for moments: its fields are in the reader's time zone, its address in UTC. */
export function asking(form, signal) {
  const fields = [...form.querySelectorAll('input[data-at]')];
  for (const field of fields) field.value = local(Date.parse(field.dataset.at));
  form.addEventListener('submit', (event) => {
    event.preventDefault();
    const asked = new URLSearchParams();
    for (const [name, value] of new FormData(form)) asked.set(name, String(value));
    for (const { name, value } of fields) asked.set(name, written(value));
    location.assign(`${form.action}?${asked}`);
  }, { signal });
}

export function ranged(element, signal) {
  const form = element.parentElement.querySelector('form.own');
  const own = element.querySelector('[data-own]');
  for (const link of element.querySelectorAll('[data-range]')) {
    link.addEventListener('click', (event) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      go({ range: link.dataset.range });
    }, { signal });
  }
  for (const input of form.querySelectorAll('input')) input.value = local(Date.parse(input.dataset.at));
  own.disabled = false;
  own.addEventListener('click', () => {
    form.hidden = !form.hidden;
    own.setAttribute('aria-expanded', String(!form.hidden));
    if (!form.hidden) form.querySelector('input').focus();
  }, { signal });
  form.addEventListener('submit', (event) => {
    event.preventDefault();
    go({ from: written(form.elements.from.value), to: written(form.elements.to.value) });
  }, { signal });
}
