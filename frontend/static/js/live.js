// Changes of sessions as they happen. Browsers open at most six connections to a host, so tabs share one stream
// through a lock and a channel; hidden tabs have none.
import { here } from './here.js';

// A channel for each project.
const CHANNEL = here('paceline-events');
const AGAIN_MS = 5000;

export class Live {
  /** `changed` gets {session, state}; `unsure` is called when changes may have been missed. */
  constructor(status, { changed, unsure }) {
    this.status = status;
    this.changed = changed;
    this.unsure = unsure;
    this.started = false;
    this.channel = 'BroadcastChannel' in window ? new BroadcastChannel(CHANNEL) : null;
    if (this.channel) this.channel.onmessage = (event) => { if (!document.hidden) this.hear(event.data, false); };
    document.addEventListener('visibilitychange', () => (document.hidden ? this.stop() : this.start()));
    // A page in the back-forward cache must release the stream.
    addEventListener('pagehide', () => this.stop());
    addEventListener('pageshow', (event) => { if (event.persisted) this.start(); });
    if (!document.hidden) this.start();
  }

  start() {
    if (this.stopping) return;
    this.stopping = new AbortController();
    const { signal } = this.stopping;
    if (this.started) this.unsure();
    this.started = true;
    if (!navigator.locks || !this.channel) {
      this.listen(signal);
      return;
    }
    navigator.locks.request(CHANNEL, { ifAvailable: true }, (lock) => {
      if (lock) return this.listen(signal);
      // Another tab has the stream and passes changes on, but not earlier ones.
      this.say('live');
      this.unsure();
      return undefined;
    }).then(() => {
      if (signal.aborted) return undefined;
      return navigator.locks.request(CHANNEL, { signal }, () => this.listen(signal));
    }).catch((error) => { if (error.name !== 'AbortError') throw error; });
  }

  stop() {
    this.stopping?.abort();
    this.stopping = null;
    this.say('paused');
  }

  /** Read the stream until stopped. */
  listen(signal) {
    if (signal.aborted) return Promise.resolve();
    let source = null;
    let again = 0;
    let opened = false;
    const open = () => {
      source = new EventSource(here('/api/v1/events'));
      source.onopen = () => {
        if (opened) this.unsure();
        opened = true;
        this.say('live');
      };
      source.onerror = () => {
        this.say('lost');
        // Browsers reconnect, except after an answer that is not a stream.
        if (source.readyState === EventSource.CLOSED) again = setTimeout(open, AGAIN_MS);
      };
      source.addEventListener('state', (event) => this.hear(JSON.parse(event.data), true));
    };
    open();
    return /** @type {Promise<void>} */ (new Promise((resolve) => {
      signal.addEventListener('abort', () => {
        clearTimeout(again);
        source.close();
        resolve();
      });
    }));
  }

  hear(change, first) {
    if (first) this.channel?.postMessage(change);
    this.changed(change);
  }

  say(state) {
    this.status.dataset.state = state;
    this.status.textContent = { live: 'Live', lost: 'Connection lost, trying again', paused: 'Paused' }[state];
    this.status.dataset.state = state;
  }
}
