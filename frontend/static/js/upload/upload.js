// A folder that becomes a session: looked at, sent file by file, and analyzed once all of it is there.
import { ask } from '../ask.js';
import { send } from './sending.js';
import { isArchive, jobName, listing, MOST_FILES, packed } from './folder.js';

const AT_ONCE = 2;

const sizeOf = (files) => files.reduce((sum, { file }) => sum + file.size, 0);

/** A file with the metadata of its session, as the parts of a form. */
function withMetadata(body, meta) {
  const form = new FormData();
  form.append('meta', meta, 'meta.yaml');
  form.append('trace', body, 'trace');
  return form;
}

export class Upload {
  /**
   * @param {{ head: number, tail: number, all: number }} looks
   * @param {() => void} changed called whenever what is shown changes
   */
  constructor(looks, changed) {
    this.looks = looks;
    this.changed = changed;
    this.reset();
  }

  reset() {
    this.stop?.abort();
    this.stop = new AbortController();
    this.stage = 'idle';
    this.words = '';
    this.error = '';
    this.job = '';
    /** @type {import('./folder.js').Named[]} what is sent */
    this.files = [];
    /** @type {{ name: string, why: string }[]} */
    this.notRead = [];
    /** @type {{ name: string, why: string }[]} recordings that the server refused */
    this.refused = [];
    this.session = null;
    this.done = 0;
    this.shares = new Map();
    this.changed();
  }

  /** Whether leaving the page would end it. */
  get busy() { return this.stage === 'sending'; }

  /** The share of the bytes that are there, from 0 to 1. */
  get share() {
    const all = sizeOf(this.files);
    if (!all) return 0;
    return this.files.reduce((sum, { name, file }) => sum + file.size * (this.shares.get(name) ?? 0), 0) / all;
  }

  /** @param {string} stage */
  become(stage, words = '') {
    this.stage = stage;
    this.words = words;
    this.changed();
  }

  fail(error, stage) {
    this.error = error.message;
    this.become(stage);
  }

  /** Look at files; `take` returns them. */
  async look(take) {
    this.reset();
    const { signal } = this.stop;
    this.become('looking', 'Looking at the files');
    try {
      const files = await take();
      if (signal.aborted) return;
      if (!files.length) throw new Error('There is no file in it.');
      if (files.length > MOST_FILES) throw new Error(`The folder has over ${MOST_FILES.toLocaleString('en-US')} files: choose that of one recording.`);
      this.job = jobName(files);
      if (files.length === 1 && isArchive(files[0].name)) {
        this.archive = true;
        this.files = files;
        this.title = 'archive';
      } else {
        this.archive = false;
        const found = await send('POST', '/api/v1/folders', listing(files, this.looks), 'application/octet-stream', { signal });
        const named = new Map(files.map((one) => [one.name, one]));
        this.folder = found.folder;
        this.title = found.title;
        this.ranks = found.ranks;
        this.meta = found.meta ? named.get(found.meta) : null;
        this.files = found.files.map((name) => named.get(name));
        this.notRead = found.not_read;
      }
      this.become('ready');
    } catch (error) {
      if (!signal.aborted) {
        this.notRead = error.files ?? [];
        this.fail(error, 'idle');
      }
    }
  }

  address(job) { return `/api/v1/jobs/${encodeURIComponent(job)}/folders/${this.folder}`; }

  /** Send what was looked at as a session of a job. */
  async start(job) {
    this.stop = new AbortController();
    const { signal } = this.stop;
    this.job = job;
    this.error = '';
    this.refused = [];
    this.become('sending');
    try {
      if (this.archive) await this.sendArchive(job, signal);
      else await this.sendFiles(job, signal);
    } catch (error) {
      if (!signal.aborted) this.fail(error, this.stage === 'sending' ? 'ready' : this.stage);
    }
  }

  async sendArchive(job, signal) {
    const [{ name, file }] = this.files;
    const received = await send('POST', `/api/v1/jobs/${encodeURIComponent(job)}/sessions`, file, 'application/octet-stream', {
      signal,
      progress: (share) => this.advance(name, share),
    });
    this.notRead = received.not_read;
    this.end(received.session, received.number);
  }

  async sendFiles(job, signal) {
    const standing = await ask('GET', this.address(job));
    if (standing.sealed) {
      this.known = true;
      this.end(standing.session, standing.number);
      return;
    }
    this.session = standing.session;
    const there = new Set(standing.files);
    this.done = 0;
    for (const { name } of this.files) {
      this.shares.set(name, there.has(name) ? 1 : 0);
      if (there.has(name)) this.done += 1;
    }
    const left = this.files.filter(({ name }) => !there.has(name));
    const worker = async () => {
      for (let one = left.shift(); one; one = left.shift()) await this.sendFile(job, one, signal);
    };
    // The first one makes the session.
    if (!standing.session && left.length) await this.sendFile(job, left.shift(), signal);
    await Promise.all(Array.from({ length: AT_ONCE }, worker));
    if (this.refused.length === this.files.length) throw new Error('None of the recordings could be read.');
    if (this.refused.length) this.become('refused');
    else await this.seal(job);
  }

  async sendFile(job, one, signal) {
    const body = await packed(one, (share) => this.advance(one.name, share / 2));
    const before = body === one.file ? 0 : 0.5;
    const sent = this.meta ? withMetadata(body, this.meta.file) : body;
    const query = new URLSearchParams({ name: one.name, ...(this.ranks ? { ranks: String(this.ranks) } : {}) });
    try {
      const received = await send('PUT', `${this.address(job)}/file?${query}`, sent, this.meta ? '' : 'application/octet-stream', {
        signal,
        progress: (share) => this.advance(one.name, before + share * (1 - before)),
      });
      this.session = received.session;
      this.done += 1;
    } catch (error) {
      if (!error.refused) throw error;
      this.refused.push({ name: one.name, why: error.message });
    }
    this.advance(one.name, 1);
  }

  advance(name, share) {
    this.shares.set(name, share);
    this.changed();
  }

  /** All that comes is there: analyze it. */
  async seal(job) {
    this.become('sending', 'Closing the session');
    const sealed = await ask('POST', `${this.address(job)}/seal`, { not_read: [...this.notRead, ...this.refused] });
    this.end(sealed.session, sealed.number);
  }

  /** Analyze the recordings that could be read. */
  async analyzeRest() {
    try {
      await this.seal(this.job);
    } catch (error) {
      this.fail(error, 'refused');
    }
  }

  end(session, number) {
    this.session = session;
    this.number = number;
    this.become('done');
  }

  /** Stop, and take away what came of it. */
  async cancel() {
    const session = this.stage === 'done' || this.stage === 'ready' ? null : this.session;
    this.reset();
    if (session) await ask('DELETE', `/api/v1/sessions/${session}`).catch(() => {});
  }
}
