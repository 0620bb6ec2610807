// What the browser keeps. Some private windows refuse storage: then nothing is kept.

/** The value of a name, or null. */
export function stored(name) {
  try {
    return localStorage.getItem(name);
  } catch {
    return null;
  }
}

/** Keep a value; null removes it. */
export function store(name, value) {
  try {
    if (value === null) localStorage.removeItem(name);
    else localStorage.setItem(name, value);
  } catch {
    // Refused.
  }
}
