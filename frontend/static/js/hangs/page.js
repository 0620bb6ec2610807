// The panel that takes the dumps of a hang on a job's page: files are packed into one archive.
import { onPage } from '../app.js';
import { here } from '../here.js';
import { send } from '../upload/sending.js';
import { tar } from './tar.js';

const ARCHIVE = /\.(zip|tar|tgz|tar\.gz|tar\.zst)$/;

const EVERY_MS = 1000;

const holdsFiles = (event) => [...event.dataTransfer.types].includes('Files');

/** Wait until a worker has read a large archive; return the hang that it became. */
async function read(upload, tell, signal) {
  for (;;) {
    if (upload.hang) return upload.hang;
    if (upload.state === 'refused' || upload.state === 'failed') throw new Error(upload.reason);
    tell(upload.state === 'reading' ? 'The server reads the files…' : 'The files wait to be read…');
    await new Promise((resolve) => { setTimeout(resolve, EVERY_MS); });
    const answer = await fetch(here(`/api/v1/hang-uploads/${upload.upload}`), { signal });
    if (answer.ok) upload = await answer.json();
    else if (answer.status < 500) throw new Error('The server has forgotten the files; send them again.');
  }
}

function mount({ main, stop }) {
  const panel = main.querySelector('[data-hang-files]');
  if (!panel) return;
  const { signal } = stop;
  const said = panel.querySelector('.said');
  const field = panel.querySelector('input');
  panel.hidden = false;

  function tell(words, failed = false) {
    said.textContent = words;
    said.classList.toggle('failed', failed);
  }

  async function take(files) {
    if (!files.length) return;
    // Dropped on what is folded: what becomes of them is said inside.
    panel.open = true;
    const whole = files.length === 1 && ARCHIVE.test(files[0].name);
    tell(`Sending ${files.length === 1 ? files[0].name : `${files.length} files`}…`);
    try {
      const path = `/api/v1/jobs/${encodeURIComponent(panel.dataset.hangFiles)}/hangs`;
      const answer = await send('POST', path, whole ? files[0] : tar(files), 'application/octet-stream', { signal });
      const hang = answer.upload ? await read(answer, tell, signal) : answer.hang;
      location.assign(here(`/hangs/${hang}`));
    } catch (error) {
      if (!signal.aborted) tell(error.message, true);
    }
  }

  panel.querySelector('[data-choose]').addEventListener('click', () => field.click(), { signal });
  field.addEventListener('change', () => { take([...field.files]); field.value = ''; }, { signal });
  // Not the recordings of a session, which the rest of the page takes.
  for (const type of ['dragenter', 'dragover', 'dragleave', 'drop']) {
    panel.addEventListener(type, (event) => {
      if (!holdsFiles(event)) return;
      event.preventDefault();
      event.stopPropagation();
      panel.classList.toggle('over', type === 'dragenter' || type === 'dragover');
      if (type === 'drop') take([...event.dataTransfer.files]);
    }, { signal });
  }
}

onPage(mount);
