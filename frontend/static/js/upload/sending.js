// Requests with a body of megabytes: how far they are, again where the server is behind.
import { here } from '../here.js';

const TRIES = 6;
const LONGEST_WAIT_MS = 60_000;
const AGAIN_MS = 2000;

/** @param {number} ms */
const pause = (ms, signal) => new Promise((resolve, reject) => {
  const timer = setTimeout(resolve, ms);
  signal.addEventListener('abort', () => { clearTimeout(timer); reject(signal.reason); }, { once: true });
});

/** Send a body once: the status, what it says, and when to come back. */
const once = (method, path, body, type, { signal, progress }) => new Promise((resolve, reject) => {
  const request = new XMLHttpRequest();
  request.open(method, here(path));
  request.responseType = 'json';
  if (type) request.setRequestHeader('Content-Type', type);
  request.upload.addEventListener('progress', (event) => progress(event.total ? event.loaded / event.total : 1));
  request.addEventListener('load', () => resolve(request));
  request.addEventListener('error', () => reject(new Error('The connection to the server broke.')));
  request.addEventListener('abort', () => reject(signal.reason));
  signal.addEventListener('abort', () => request.abort(), { once: true });
  signal.throwIfAborted();
  request.send(body);
});

/**
 * Send a body, again where the server asks for that or the connection breaks.
 * An error has the `files` that it is about, and `refused` where it is for good.
 * @param {string} method
 * @param {string} path
 * @param {Blob | FormData} body
 * @param {string} type
 * @param {{ signal: AbortSignal, progress?: (share: number) => void }} options
 */
export async function send(method, path, body, type, { signal, progress = () => {} }) {
  for (let attempt = 1; ; attempt += 1) {
    let request;
    try {
      request = await once(method, path, body, type, { signal, progress });
    } catch (error) {
      if (signal.aborted || attempt === TRIES) throw error;
      await pause(AGAIN_MS * attempt, signal);
      continue;
    }
    const { status, response } = request;
    if (status >= 200 && status < 300 && response) return response;
    const busy = status === 429 || status === 503;
    if (!busy || attempt === TRIES) {
      const words = response?.detail ?? 'The server cannot be reached at the moment; try again.';
      // A refusal is of this file for good; the rest is of the moment.
      const files = (response?.faults ?? []).filter(({ file }) => file).map(({ file, message }) => ({ name: file, why: message.replace(/^Not read: /, '') }));
      throw Object.assign(new Error(words), { files, refused: status >= 400 && status < 500 && !busy && !!response });
    }
    const after = Number(request.getResponseHeader('Retry-After'));
    await pause(Math.min(LONGEST_WAIT_MS, after > 0 ? after * 1000 : AGAIN_MS), signal);
  }
}
