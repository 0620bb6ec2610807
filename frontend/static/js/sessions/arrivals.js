// Columns of the map of arrivals are links: one of them is a stop of the keyboard, arrows go on from it.
const COLUMNS = '.late-cells a';

document.addEventListener('keydown', (event) => {
  const at = /** @type {Element} */ (event.target).closest?.(COLUMNS);
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!at || !step) return;
  const columns = /** @type {SVGAElement[]} */ ([...document.querySelectorAll(COLUMNS)]);
  const next = columns[columns.findIndex((column) => column === at) + step];
  if (!next) return;
  event.preventDefault();
  at.setAttribute('tabindex', '-1');
  next.setAttribute('tabindex', '0');
  next.focus();
});
