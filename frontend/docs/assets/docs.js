// The pages of the documentation: search, copying of code, the list of pages in narrow windows.
import { score, snippet, wordsOf } from './search.js';

const SHOWN = 12;
const NARROW = matchMedia('(max-width: 800px)');
const root = document.body.dataset.root;

// ---- search

const field = /** @type {HTMLInputElement} */ (document.getElementById('find'));
const list = document.getElementById('found');
const said = document.getElementById('found-count');
/** @type {Promise<{ location: string, title: string, text: string }[]> | null} */
let loading = null;

function sections() {
  loading ??= fetch(`${root}/search/search_index.json`).then(async (response) => {
    if (!response.ok) throw new Error(String(response.status));
    return (await response.json()).docs;
  });
  loading.catch(() => { loading = null; });
  return loading;
}

function item(section, words) {
  const link = document.createElement('a');
  link.href = `${root}/${section.location}`;
  const head = document.createElement('b');
  head.textContent = section.page && section.page !== section.title ? `${section.page}: ${section.title}` : section.title;
  const text = document.createElement('span');
  text.textContent = snippet(section.text, words);
  link.append(head, text);
  const entry = document.createElement('li');
  entry.append(link);
  return entry;
}

async function find() {
  const words = wordsOf(field.value);
  list.hidden = !words.length;
  if (!words.length) {
    said.textContent = '';
    return;
  }
  let all;
  try {
    all = await sections();
  } catch {
    said.textContent = 'The search could not be loaded.';
    list.hidden = true;
    return;
  }
  // The words have changed meanwhile.
  if (wordsOf(field.value).join() !== words.join()) return;
  const pages = new Map(all.filter(({ location }) => !location.includes('#')).map((page) => [page.location, page.title]));
  const found = all
    .map((section) => ({ ...section, page: pages.get(section.location.split('#')[0]), score: score(section, words) }))
    .filter((section) => section.score > 0)
    .sort((a, b) => b.score - a.score);
  list.replaceChildren(...found.slice(0, SHOWN).map((section) => item(section, words)));
  list.hidden = !found.length;
  said.textContent = found.length ? `${found.length} sections found` : 'Nothing found';
}

function move(event) {
  const links = [...list.querySelectorAll('a')];
  const at = links.indexOf(/** @type {HTMLAnchorElement} */ (document.activeElement));
  if (event.key === 'Escape') {
    list.hidden = true;
    field.focus();
  } else if (event.key === 'ArrowDown' && !list.hidden) {
    event.preventDefault();
    links[Math.min(at + 1, links.length - 1)]?.focus();
  } else if (event.key === 'ArrowUp' && at >= 0) {
    event.preventDefault();
    (links[at - 1] ?? field).focus();
  }
}

const search = field.closest('search');
search.removeAttribute('hidden');
field.addEventListener('input', find);
field.addEventListener('focus', find);
search.addEventListener('keydown', move);
document.addEventListener('click', (event) => { if (!search.contains(/** @type {Node} */ (event.target))) list.hidden = true; });
document.addEventListener('keydown', (event) => {
  if (event.key !== '/' || event.ctrlKey || event.metaKey || document.activeElement === field) return;
  event.preventDefault();
  field.focus();
});

// ---- code

for (const block of document.querySelectorAll('main pre')) {
  const button = document.createElement('button');
  button.type = 'button';
  button.className = 'link copy';
  button.textContent = 'Copy';
  const around = document.createElement('div');
  around.className = 'block';
  block.replaceWith(around);
  around.append(block, button);
  button.addEventListener('click', async () => {
    try {
      await navigator.clipboard.writeText(block.textContent.trimEnd());
      button.textContent = 'Copied';
    } catch {
      button.textContent = 'Not copied';
    }
    setTimeout(() => { button.textContent = 'Copy'; }, 2000);
  });
}

// ---- all pages

const all = /** @type {HTMLDetailsElement} */ (document.querySelector('details.all'));
const fold = () => { all.open = !NARROW.matches; };
NARROW.addEventListener('change', fold);
fold();
document.querySelector('.all [aria-current]')?.scrollIntoView({ block: 'nearest' });
