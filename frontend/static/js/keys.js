// Keys: search, move in a list, act on the selection; open the palette and the help.
import { make, Palette } from './palette.js';
import { undoLatest } from './undo.js';
import { store, stored } from './storage.js';

const OFF = 'paceline-keys-off';
const ROWS = '[data-row], .fleet tbody td a[href^="/jobs/"], .fleet tbody td a[href*="/jobs/"], .fleet tbody td.number a';
const HELP = [
  ['/', 'Search on this page, or everywhere'],
  ['Ctrl K', 'Go to a job, session, host or incident'],
  ['j', 'Next line'],
  ['k', 'Previous line'],
  ['Enter', 'Open the line'],
  ['x', 'Select the incident'],
  ['a', 'Acknowledge the selected incidents, that of the line, or the open one'],
  ['s', 'Silence them'],
  ['u', 'Take back what was just acknowledged or resolved'],
  ['?', 'This help'],
];

let palette = null;
let help = null;

const off = () => stored(OFF) !== null;

const shown = (elements) => [...elements].filter((element) => element.checkVisibility());

function openPalette() {
  palette ??= new Palette();
  if (!palette.dialog.open) palette.open();
}

function openHelp() {
  if (!help) {
    const box = make('input', { type: 'checkbox' });
    box.addEventListener('change', () => store(OFF, box.checked ? null : '1'));
    const close = make('button', { type: 'button' }, 'Close');
    help = make(
      'dialog', { class: 'palette help', 'aria-label': 'Keys' },
      make('h2', { class: 't' }, 'Keys'),
      make('dl', {}, ...HELP.map(([key, words]) => make('div', {}, make('dt', {}, ...key.split(' ').map((part) => make('kbd', {}, part))), make('dd', {}, words)))),
      make('label', { class: 'clear' }, box, 'Use single keys'), close,
    );
    close.addEventListener('click', () => help.close());
    help.addEventListener('click', (event) => { if (event.target === help) help.close(); });
    document.body.append(help);
  }
  help.querySelector('input').checked = !off();
  help.showModal();
}

function search() {
  const [field] = shown(document.querySelectorAll('#page [role=search] input[type=search]'));
  if (!field) openPalette();
  else {
    field.focus();
    field.select();
  }
}

/** Move the focus between the lines of the page's lists. */
function move(by) {
  const rows = shown(document.querySelectorAll(ROWS));
  if (!rows.length) return;
  const at = rows.findIndex((row) => row.closest('tr').contains(document.activeElement));
  const from = at < 0 ? rows.findIndex((row) => row.getAttribute('aria-current') === 'true') : at;
  rows[Math.max(0, Math.min(rows.length - 1, at < 0 && from < 0 ? 0 : from + by))].focus();
}

const boxOfLine = () => /** @type {HTMLElement | null | undefined} */ (document.activeElement?.closest('tr')?.querySelector('[data-pick]'));

/** Press a button for the selection, the line with the focus, or the open incident. */
function press(many, one) {
  const bar = /** @type {HTMLElement | null} */ (document.querySelector('[data-bulk]'));
  if (bar?.hidden) boxOfLine()?.click();
  const button = bar && !bar.hidden ? /** @type {HTMLElement | null} */ (bar.querySelector(many)) : shown(document.querySelectorAll(`[data-incident] ${one}`))[0];
  button?.click();
}

const KEYS = {
  '/': search,
  '?': openHelp,
  j: () => move(1),
  k: () => move(-1),
  x: () => boxOfLine()?.click(),
  a: () => press('[data-many=acknowledge]', '[data-do=ack]'),
  s: () => press('[data-asks=silence]', '[data-opens=silence]'),
  u: undoLatest,
};

export function mountKeys() {
  const find = document.getElementById('find');
  find.hidden = false;
  find.addEventListener('click', openPalette);
  addEventListener('keydown', (event) => {
    if (event.key.toLowerCase() === 'k' && (event.ctrlKey || event.metaKey) && !event.altKey && !event.shiftKey) {
      event.preventDefault();
      openPalette();
      return;
    }
    const writes = /** @type {Element} */ (event.target).matches?.('input:not([type=checkbox]), textarea, select, [contenteditable]');
    if (writes || event.ctrlKey || event.metaKey || event.altKey || event.repeat && !'jk'.includes(event.key)) return;
    if (document.querySelector('dialog[open]') || !(event.key in KEYS) || (off() && event.key !== '?')) return;
    event.preventDefault();
    KEYS[event.key]();
  });
}
