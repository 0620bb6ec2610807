// The command palette: finds jobs, sessions, hosts and incidents of the project.
import { ask } from './ask.js';
import { here } from './here.js';

const TYPING_MS = 150;
const KINDS = { incident: 'Incident', job: 'Job', host: 'Host', session: 'Session', page: 'Page' };
const PAGES = [['Fleet', '/'], ['Incidents', '/incidents'], ['Hosts', '/hosts'], ['Plans', '/plans'], ['Rules', '/rules'], ['Channels', '/channels'], ['Quotas', '/quotas']];

/** An element with attributes and children. */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

export class Palette {
  constructor() {
    this.input = make('input', {
      type: 'search', role: 'combobox', 'aria-label': 'Go to', 'aria-expanded': 'true', 'aria-controls': 'found', 'aria-autocomplete': 'list',
      placeholder: 'Job, host, session number, cause', maxlength: '200', autocomplete: 'off', spellcheck: 'false',
    });
    this.list = make('ul', { id: 'found', role: 'listbox', 'aria-label': 'Found' });
    this.said = make('p', { class: 'note', role: 'status' });
    this.dialog = make('dialog', { class: 'palette', 'aria-label': 'Go to' }, this.input, this.list, this.said);
    document.body.append(this.dialog);
    this.latest = 0;
    this.input.addEventListener('input', () => {
      clearTimeout(this.typing);
      this.typing = setTimeout(() => this.look(), TYPING_MS);
    });
    this.input.addEventListener('keydown', (event) => this.key(event));
    this.dialog.addEventListener('click', (event) => { if (event.target === this.dialog) this.dialog.close(); });
  }

  open() {
    this.input.value = '';
    this.look();
    this.dialog.showModal();
    this.input.focus();
  }

  async look() {
    const words = this.input.value.trim();
    const pages = PAGES.filter(([name]) => name.toLowerCase().includes(words.toLowerCase()))
      .map(([name, path]) => ({ kind: 'page', name, note: '', path }));
    const number = ++this.latest;
    let found = [];
    try {
      if (words) ({ found } = await ask('GET', `/api/v1/search?q=${encodeURIComponent(words)}`));
    } catch (error) {
      if (number === this.latest) this.said.textContent = error.message;
      return;
    }
    // Answers to earlier questions are not shown.
    if (number === this.latest) this.show([...found, ...pages]);
  }

  show(found) {
    this.list.replaceChildren(...found.map(({ kind, name, note, path }, at) => {
      const link = make('a', { href: here(path), tabindex: '-1', id: `found-${at}`, role: 'option', 'aria-selected': 'false' }, make('span', { class: 'kind' }, KINDS[kind]), make('span', { class: 'name' }, name), make('span', { class: 'note' }, note));
      return make('li', { role: 'presentation' }, link);
    }));
    this.said.textContent = found.length ? '' : 'Nothing found.';
    this.choose(0);
  }

  /** @returns {HTMLElement[]} */
  options() {
    return [...this.list.querySelectorAll('a')];
  }

  choose(at) {
    const items = this.options();
    this.at = items.length ? (at + items.length) % items.length : -1;
    for (const [number, item] of items.entries()) item.setAttribute('aria-selected', String(number === this.at));
    this.input.setAttribute('aria-activedescendant', this.at < 0 ? '' : items[this.at].id);
    items[this.at]?.scrollIntoView({ block: 'nearest' });
  }

  key(event) {
    const moves = { ArrowDown: 1, ArrowUp: -1 };
    if (event.key in moves) {
      event.preventDefault();
      this.choose(this.at + moves[event.key]);
    } else if (event.key === 'Enter') {
      event.preventDefault();
      this.options()[this.at]?.click();
    } else if (event.key === 'Escape') {
      // In a search field it would only clear the text.
      event.preventDefault();
      this.dialog.close();
    }
  }
}
