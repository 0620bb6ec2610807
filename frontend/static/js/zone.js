// Loaded before the first paint, so that no text moves: writes every time in the reader's zone. That is the
// browser's, unless the reader has chosen UTC. The server writes UTC; forms are those of app/web/moments.py.
(() => {
  const DAYS = ['Sunday', 'Monday', 'Tuesday', 'Wednesday', 'Thursday', 'Friday', 'Saturday'];
  const MONTHS = ['Jan', 'Feb', 'Mar', 'Apr', 'May', 'Jun', 'Jul', 'Aug', 'Sep', 'Oct', 'Nov', 'Dec'];
  const UTC_NAMES = new Set(['UTC', 'Etc/UTC', 'UCT', 'Etc/UCT', 'GMT', 'Etc/GMT', 'Zulu', 'Universal']);
  const MINUTE_MS = 60_000;
  const DAY_MS = 86_400_000;
  const own = Intl.DateTimeFormat().resolvedOptions().timeZone ?? 'UTC';
  const ownIsUtc = UTC_NAMES.has(own);
  const chosen = () => {
    try {
      return localStorage.getItem('zone');
    } catch {
      return null; // some private windows refuse storage
    }
  };
  let utc = ownIsUtc || (globalThis.document !== undefined && chosen() === 'UTC');

  /** A moment in milliseconds, moved so that its fields in UTC are those of the reader's zone. */
  const moved = (ms, inUtc) => (inUtc ? ms : ms - new Date(ms).getTimezoneOffset() * MINUTE_MS);
  const two = (number) => String(number).padStart(2, '0');

  /** The moment to which "today" belongs. */
  const today = () => Date.parse(globalThis.document?.body?.dataset.now ?? '') || Date.now();

  function words(ms, form, { inUtc = utc, bare = false, now = today() } = {}) {
    const at = new Date(moved(ms, inUtc));
    const day = `${at.getUTCDate()} ${MONTHS[at.getUTCMonth()]}`;
    if (form === 'day') return day;
    const date = `${day} ${at.getUTCFullYear()}`;
    if (form === 'date') return date;
    const clock = `${two(at.getUTCHours())}:${two(at.getUTCMinutes())}`;
    const zone = inUtc && !bare ? ' UTC' : '';
    if (form === 'exact') return `${date} ${clock}:${two(at.getUTCSeconds())}${zone}`;
    if (form === 'weekly') return `${DAYS[at.getUTCDay()]}s at ${clock}${zone}`;
    if (form === 'minute') return `${date} ${clock}${zone}`;
    const than = new Date(moved(now, inUtc));
    if (at.getUTCFullYear() !== than.getUTCFullYear()) return `${date} ${clock}${zone}`;
    const sameDay = Math.floor(at.getTime() / DAY_MS) === Math.floor(than.getTime() / DAY_MS);
    return `${sameDay ? '' : `${day} `}${clock}${zone}`;
  }

  /** How far the zone is from UTC at a moment: `UTC+5:30`. */
  function offset(ms) {
    const minutes = (moved(ms, utc) - ms) / MINUTE_MS;
    if (!minutes) return 'UTC';
    const size = Math.abs(minutes);
    return `UTC${minutes < 0 ? '\u2212' : '+'}${Math.floor(size / 60)}${size % 60 ? `:${two(size % 60)}` : ''}`;
  }

  globalThis.zone = {
    words,
    offset,
    moved: (ms) => moved(ms, utc),
    name: () => (utc ? 'UTC' : own.replaceAll('_', ' ')),
    local: (ms) => (Number.isNaN(ms) ? '' : new Date(moved(ms, utc)).toISOString().slice(0, 16)),
    read: (value) => Date.parse(utc ? `${value}Z` : value),
  };
  if (!globalThis.document) return;

  function show(element) {
    const ms = Date.parse(element.dataset.at ?? element.dateTime);
    const { time: form } = element.dataset;
    const bare = 'bare' in element.dataset;
    if ('at' in element.dataset) {
      const before = words(ms, form, { inUtc: true, bare });
      element.textContent = element.textContent.replace(before, words(ms, form, { bare }));
    } else if (form) {
      element.textContent = words(ms, form, { bare });
    } else {
      // An age: its text says nothing of zones.
      element.title = `${words(ms, 'exact')}, ${words(ms, 'exact', { inUtc: true })}`;
    }
  }

  function showAll() {
    if (utc) return;
    /** @type {NodeListOf<HTMLTimeElement>} */
    const moments = document.querySelectorAll('time:not([data-shown]), [data-at]:not([data-shown])');
    for (const element of moments) {
      element.dataset.shown = '';
      show(element);
    }
    /** @type {NodeListOf<HTMLElement>} */
    const names = document.querySelectorAll('[data-zone]:not([data-shown])');
    for (const element of names) {
      element.dataset.shown = '';
      element.textContent = globalThis.zone.name();
    }
  }
  // Runs before what was added is painted, while the page arrives as well.
  new MutationObserver((changes) => {
    if (changes.some(({ addedNodes }) => [...addedNodes].some((node) => node.nodeType === Node.ELEMENT_NODE))) showAll();
  }).observe(document, { childList: true, subtree: true });

  addEventListener('DOMContentLoaded', () => {
    const button = /** @type {HTMLButtonElement | null} */ (document.getElementById('zone'));
    if (!button) return;
    const say = () => {
      button.textContent = offset(today());
      const next = utc ? `those of ${own.replaceAll('_', ' ')}` : 'UTC';
      const said = ownIsUtc ? 'times are UTC, as in your browser' : `times are those of ${globalThis.zone.name()}: switch to ${next}`;
      button.setAttribute('aria-label', `${button.textContent}: ${said}`);
      button.title = `T${said.slice(1)}`;
      button.disabled = ownIsUtc;
    };
    button.hidden = false;
    button.addEventListener('click', () => {
      utc = !utc;
      try {
        if (utc) localStorage.setItem('zone', 'UTC');
        else localStorage.removeItem('zone');
      } catch {
        // Refused: it applies to this page only.
      }
      say();
      // The page is fetched and written again.
      dispatchEvent(new Event('zonechange'));
    });
    say();
  });
})();
