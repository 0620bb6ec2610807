// The panel that takes a folder, on the pages of the fleet and of a job: by a drop or by its buttons.
import { onPage } from '../app.js';
import { count } from '../format.js';
import { here } from '../here.js';
import { chosen, dropped } from './folder.js';
import { Upload } from './upload.js';

const MIB = 1024 * 1024;
const NAMED = 50;
const NBSP = '\u00a0';

/** @type {Upload | null} what outlives a refresh of the page */
let upload = null;
let panel = null;
let frame = 0;
// The panel is shown although there is nothing in it; kept when the page is replaced.
let opened = false;

const plural = (number, word) => `${count(number)}${NBSP}${word}${number === 1 ? '' : 's'}`;

function size(bytes) {
  if (bytes >= 1024 * MIB) return `${(bytes / 1024 / MIB).toFixed(1)}${NBSP}GiB`;
  return bytes >= MIB ? `${(bytes / MIB).toFixed(1)}${NBSP}MiB` : `${Math.ceil(bytes / 1024)}${NBSP}KiB`;
}

const sum = (files) => files.reduce((all, { file }) => all + file.size, 0);

function title() {
  const what = upload.archive ? 'Archive' : plural(upload.files.length, `${upload.title} recording`);
  const all = size(sum(upload.files));
  switch (upload.stage) {
    case 'looking': return 'Looking at the files';
    case 'ready': return `${what}, ${all}`;
    case 'sending': return `Sending to ${upload.job}`;
    case 'refused': return `${count(upload.refused.length)} of ${plural(upload.files.length, 'recording')} could not be read`;
    case 'done': return upload.known ? 'This folder was uploaded before' : 'Uploaded';
    default: return 'Drop a profiler folder here';
  }
}

function progress() {
  if (upload.stage !== 'sending') return '';
  if (upload.words) return upload.words;
  const all = sum(upload.files);
  const files = upload.archive ? '' : `${count(upload.done)} of ${plural(upload.files.length, 'file')}, `;
  return `${files}${size(upload.share * all)} of ${size(all)}`;
}

function lines(list, files) {
  const shown = files.slice(0, NAMED).map(({ name, why }) => {
    const line = document.createElement('li');
    const file = document.createElement('b');
    file.textContent = name;
    line.append(file, `: ${why}`);
    return line;
  });
  if (files.length > NAMED) {
    const more = document.createElement('li');
    more.textContent = `${plural(files.length - NAMED, 'more file')}`;
    shown.push(more);
  }
  list.replaceChildren(...shown);
}

function render() {
  if (!panel || !upload) return;
  const { stage } = upload;
  const part = (name) => panel.querySelector(`[data-part=${name}]`);
  panel.hidden = stage === 'idle' && !upload.error && !opened && !('open' in panel.dataset);
  panel.dataset.stage = stage;
  panel.querySelector('h2').textContent = title();
  for (const element of panel.querySelectorAll('[data-when]')) element.hidden = !element.dataset.when.split(' ').includes(stage);
  part('bar').value = upload.share;
  part('progress').textContent = progress();
  part('error').textContent = upload.error;
  const left = [...upload.refused, ...upload.notRead];
  part('left').hidden = !left.length;
  part('left-title').textContent = `${plural(left.length, 'file')} not read`;
  lines(part('files'), left);
  const field = panel.querySelector('input[name=job]');
  if (document.activeElement !== field && field) field.value = upload.job;
  if (stage === 'done') {
    const link = part('link');
    link.href = here(`/sessions/${upload.session}`);
    link.textContent = `Session ${upload.number} of ${upload.job}`;
  }
}

function changed() {
  if (frame) return;
  frame = requestAnimationFrame(() => { frame = 0; render(); });
}

function take(files) {
  upload.look(files).then(() => {
    // Who used the keyboard goes on from there.
    if (upload.stage === 'ready') requestAnimationFrame(() => panel?.querySelector('input[name=job], [data-do=start]')?.focus());
  });
  panel.hidden = false;
  panel.scrollIntoView({ block: 'nearest' });
}

const free = () => upload && !upload.busy && upload.stage !== 'refused';
const holdsFiles = (event) => [...event.dataTransfer.types].includes('Files');

function mount({ main, stop }) {
  panel = main.querySelector('[data-upload]');
  if (!panel) return;
  const { signal } = stop;
  const { head, tail, all } = panel.dataset;
  upload ??= new Upload({ head: Number(head), tail: Number(tail), all: Number(all) }, changed);
  const job = () => panel.dataset.upload || panel.querySelector('input[name=job]').value.trim();
  const act = {
    folder: () => panel.querySelector('input[webkitdirectory]').click(),
    files: () => panel.querySelector('input[type=file]:not([webkitdirectory])').click(),
    rest: () => upload.analyzeRest(),
    cancel: () => upload.cancel(),
    close: () => { opened = false; upload.reset(); render(); },
  };
  for (const button of panel.querySelectorAll('[data-do]')) {
    if (button.dataset.do in act) button.addEventListener('click', () => act[button.dataset.do](), { signal });
  }
  for (const field of panel.querySelectorAll('input[type=file]')) {
    const choose = () => {
      if (!field.files.length) return;
      const files = chosen(field.files);
      take(async () => files);
      field.value = '';
    };
    field.addEventListener('change', choose, { signal });
    // Who was quicker than the scripts of the page has chosen already.
    choose();
  }
  panel.querySelector('form').addEventListener('submit', (event) => {
    event.preventDefault();
    upload.start(job());
  }, { signal });
  panel.querySelector('input[name=job]')?.addEventListener('input', (event) => { upload.job = event.target.value; }, { signal });
  const opener = main.querySelector('[data-opens-upload]');
  if (opener) {
    opener.hidden = false;
    opener.addEventListener('click', () => {
      opened = true;
      render();
      panel.querySelector('[data-do=folder]').focus();
    }, { signal });
  }
  dropsOn(main, signal);
  render();
}

/** Take what is dropped anywhere on the page. */
function dropsOn(main, signal) {
  let inside = 0;
  const show = () => { main.classList.toggle('dropping', inside > 0 && free()); };
  addEventListener('dragenter', (event) => { if (holdsFiles(event)) { inside += 1; show(); } }, { signal });
  addEventListener('dragleave', (event) => { if (holdsFiles(event)) { inside = Math.max(0, inside - 1); show(); } }, { signal });
  addEventListener('dragover', (event) => { if (holdsFiles(event)) event.preventDefault(); }, { signal });
  addEventListener('drop', (event) => {
    if (!holdsFiles(event)) return;
    event.preventDefault();
    inside = 0;
    show();
    if (!free()) return;
    // Its items are gone when the event has ended.
    const files = dropped(event.dataTransfer.items);
    take(() => files);
  }, { signal });
}

onPage(mount);
addEventListener('beforeunload', (event) => { if (upload?.busy) event.preventDefault(); });
