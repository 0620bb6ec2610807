// Forms with fields of the server (form_macros.html): read them, and show faults next to fields.

const NO_MATCH = 'string_pattern_mismatch';

const parts = (text, separator) => text.split(separator).map((part) => part.trim()).filter(Boolean);

const isShown = (field) => !field.closest('[hidden]');

function pair(line) {
  const at = line.indexOf('=');
  return at < 0 ? [line, ''] : [line.slice(0, at).trim(), line.slice(at + 1).trim()];
}

const control = (field) => field.querySelector('input:not([data-clear]), select, textarea');

/** The value of a field: null if empty, undefined for an unchanged secret. */
function held(field) {
  const kind = field.dataset.control;
  if (kind === 'checks') return [...field.querySelectorAll('input:checked')].map((box) => box.value);
  if (kind === 'flag') return control(field).checked;
  const text = control(field).value.trim();
  if (!text && 'secret' in field.dataset) return field.querySelector('[data-clear]')?.checked ? null : undefined;
  const separator = 'inline' in field.dataset ? ',' : '\n';
  if (kind === 'lines') return parts(text, separator);
  if (kind === 'pairs') return Object.fromEntries(parts(text, separator).map(pair));
  if (!text) return null;
  return kind === 'number' ? Number(text) : text;
}

/** The values of the visible fields by path; `nulls` includes empty ones, to remove values. */
export function read(form, { nulls }) {
  const document = {};
  for (const field of form.querySelectorAll('[data-path]')) {
    if (!isShown(field)) continue;
    const value = held(field);
    const path = field.dataset.path.split('.');
    const name = path.pop();
    const place = path.reduce((at, part) => (at[part] ??= {}), document);
    if (value !== undefined && (value !== null || nulls)) place[name] = value;
  }
  return document;
}

export function clearFaults(form) {
  for (const place of form.querySelectorAll('.fault')) place.textContent = '';
  for (const element of form.querySelectorAll('[aria-invalid]')) element.removeAttribute('aria-invalid');
}

/** Show each fault next to its field; return the others as one text. */
export function showFaults(form, faults) {
  const fields = new Map([...form.querySelectorAll('[data-path]')].filter(isShown).map((field) => [field.dataset.path, field]));
  const rest = [];
  for (const fault of faults) {
    // The path of a value in a list includes its index.
    let path = fault.column ?? '';
    while (path && !fields.has(path)) path = path.slice(0, Math.max(0, path.lastIndexOf('.')));
    const field = fields.get(path);
    const { example } = field?.dataset ?? {};
    // Readers understand an example better than a pattern.
    const words = fault.code === NO_MATCH && example ? `Must look like ${example}` : fault.message;
    if (field) {
      field.querySelector('.fault').textContent = words;
      (control(field) ?? field).setAttribute('aria-invalid', 'true');
    } else {
      rest.push(words);
    }
  }
  form.querySelector('[aria-invalid=true]')?.focus();
  return rest.join(' ');
}

/** Let a form do its work when it is submitted: faults are shown next to fields, other errors in its `said`. */
export function submits(form, signal, work, faultsOf = (error) => error.faults ?? []) {
  const button = form.querySelector('[type=submit]');
  const said = form.querySelector('.said');
  button.disabled = false;
  form.addEventListener('submit', async (event) => {
    event.preventDefault();
    button.disabled = true;
    said.textContent = '';
    clearFaults(form);
    try {
      await work();
    } catch (error) {
      const faults = faultsOf(error);
      said.textContent = showFaults(form, faults) || (faults.length ? '' : error.message);
    } finally {
      button.disabled = false;
    }
  }, { signal });
}
