// Terms that explain themselves: on hover, on focus and on tap. Their sentences are on the page (#terms).
const GAP_PX = 6;
const LEAVE_MS = 200;

let tip = null;
/** @type {HTMLElement | null} */
let shown = null;
let leaving = 0;
let touched = false;

function made() {
  const element = document.createElement('span');
  element.className = 'tip';
  element.popover = 'manual';
  return element;
}

function place() {
  const at = shown.getBoundingClientRect();
  const { width, height } = tip.getBoundingClientRect();
  const below = at.bottom + GAP_PX;
  tip.style.left = `${Math.max(GAP_PX, Math.min(at.left, innerWidth - width - GAP_PX))}px`;
  tip.style.top = `${below + height > innerHeight ? Math.max(GAP_PX, at.top - GAP_PX - height) : below}px`;
}

function hide() {
  clearTimeout(leaving);
  // Its removal takes the focus away, which calls this again.
  if (!shown) return;
  shown = null;
  tip.remove();
}

/** @param {HTMLElement} term */
function show(term) {
  clearTimeout(leaving);
  if (term === shown) return;
  const sentence = document.getElementById(`term-${term.dataset.term}`);
  if (!sentence) return;
  hide();
  shown = term;
  tip ??= made();
  const link = document.createElement('a');
  link.href = `/docs/glossary/#${term.dataset.term}`;
  link.textContent = 'Glossary';
  tip.replaceChildren(...sentence.cloneNode(true).childNodes, ' ', link);
  // Next to its term, so that Tab goes on to the link.
  term.after(tip);
  tip.showPopover();
  place();
}

const termAt = (target) => /** @type {HTMLElement | null} */ (target.closest?.('[data-term]'));
const within = (target) => target instanceof Node && (tip?.contains(target) || shown?.contains(target));

/** Explain the terms of the page, also those that come later. */
export function mountTerms() {
  document.addEventListener('pointerover', ({ target, pointerType }) => {
    if (pointerType === 'touch') return;
    const term = termAt(target);
    if (term) show(term);
    else if (within(target)) clearTimeout(leaving);
  });
  document.addEventListener('pointerout', ({ target, relatedTarget, pointerType }) => {
    if (pointerType === 'touch' || !within(target) || within(relatedTarget)) return;
    clearTimeout(leaving);
    leaving = setTimeout(hide, LEAVE_MS);
  });
  document.addEventListener('pointerdown', ({ pointerType, target }) => {
    touched = pointerType === 'touch';
    if (touched && !within(target)) hide();
  });
  document.addEventListener('focusin', ({ target }) => {
    const term = termAt(target);
    // A tap shows it on its click.
    if (term && !touched) show(term);
  });
  document.addEventListener('focusout', ({ target, relatedTarget }) => {
    if (within(target) && !within(relatedTarget)) hide();
  });
  // The first tap explains; the second follows the link, or sorts.
  document.addEventListener('click', (event) => {
    const term = termAt(event.target);
    if (!term || !touched || term === shown) return;
    event.preventDefault();
    event.stopPropagation();
    show(term);
  }, { capture: true });
  document.addEventListener('keydown', (event) => {
    if (event.key !== 'Escape' || !shown) return;
    event.stopPropagation();
    hide();
  }, { capture: true });
  addEventListener('scroll', hide, { capture: true, passive: true });
}
