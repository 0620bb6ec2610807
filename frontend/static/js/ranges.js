// The time range of a page; choosing another one keeps the rest of the address.
const NAMES = ['range', 'from', 'to', 'page'];

/**
 * A time as the value of a datetime-local input, in the reader's time zone; empty for NaN.
 * @param {number} ms
 */
export function local(ms) {
  return Number.isNaN(ms) ? '' : new Date(ms - new Date(ms).getTimezoneOffset() * 60_000).toISOString().slice(0, 16);
}

/** The value of such an input for the address; empty if it is.
 * @param {string} value
 */
export const written = (value) => (value ? `${new Date(value).toISOString().slice(0, 16)}Z` : '');

function go(change) {
  const url = new URL(location.href);
  for (const name of NAMES) url.searchParams.delete(name);
  for (const [name, value] of Object.entries(change)) if (value) url.searchParams.set(name, value);
  location.assign(url);
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
