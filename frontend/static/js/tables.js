// Sortable tables, and tables that first show some rows only.
const collator = new Intl.Collator('en', { numeric: true });

function sort(table, column, descending) {
  const key = (row) => row.cells[column].dataset.v ?? row.cells[column].textContent.trim();
  const rows = [...table.tBodies[0].rows].sort((a, b) => {
    const [x, y] = [key(a), key(b)];
    const difference = x !== '' && y !== '' ? x - y : NaN;
    return (Number.isNaN(difference) ? collator.compare(x, y) : difference) * (descending ? -1 : 1);
  });
  table.tBodies[0].append(...rows);
  for (const heading of table.tHead.rows[0].cells) heading.removeAttribute('aria-sort');
  table.tHead.rows[0].cells[column].setAttribute('aria-sort', descending ? 'descending' : 'ascending');
  shorten(table);
}

/** Hide all but the first rows of a shortened table; rows that a filter hides in other tables stay hidden. */
function shorten(table) {
  if (!('short' in table.dataset)) return;
  const short = Number(table.dataset.short);
  const all = table.classList.contains('all');
  [...table.tBodies[0].rows].forEach((row, at) => { row.hidden = !all && at >= short; });
}

function record(change) {
  const url = new URL(location.href);
  for (const [name, value] of Object.entries(change)) {
    if (value) url.searchParams.set(name, value);
    else url.searchParams.delete(name);
  }
  history.replaceState(null, '', url);
}

/** Let the buttons in the headings sort; the order is in the address. */
export function sortable(table, signal) {
  const headings = [...table.tHead.rows[0].cells];
  const asked = new URLSearchParams(location.search).get('sort');
  const addressed = table.classList.contains('fleet');
  const match = addressed && asked ? /^(-?)(\d+)$/.exec(asked) : null;
  if (match && headings[match[2]]?.querySelector('button')) sort(table, Number(match[2]), match[1] === '-');
  headings.forEach((heading, column) => {
    heading.querySelector('button')?.addEventListener('click', () => {
      const order = heading.getAttribute('aria-sort');
      const descending = order ? order !== 'descending' : heading.classList.contains('num');
      sort(table, column, descending);
      if (addressed) record({ sort: `${descending ? '-' : ''}${column}` });
    }, { signal });
  });
  const more = table.closest('section')?.querySelector('[data-more]');
  const label = more?.textContent;
  more?.addEventListener('click', () => {
    const all = table.classList.toggle('all');
    more.textContent = all ? `Only the first ${table.dataset.short}` : label;
    more.setAttribute('aria-expanded', String(all));
    shorten(table);
  }, { signal });
}
