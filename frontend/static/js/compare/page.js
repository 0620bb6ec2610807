// The maps of two sessions and of their difference, on canvases, which are fast for thousands of workers.
import { onPage } from '../app.js';
import { heat, isLight, token } from '../colors.js';
import { times, worker } from '../format.js';
import { every } from '../svg.js';

const SCALE = 10_000;
const MARGIN = { left: 28, top: 4, bottom: 32 };
const VALUE_WIDTH = 36;
const VALUE_HEIGHT = 16;
const GAP_FROM = 6;

function decoded(text) {
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const view = new DataView(bytes.buffer);
  return Float32Array.from({ length: bytes.length / 2 }, (_, at) => view.getUint16(2 * at, true) / SCALE);
}

const rgb = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));

/** Slower: the color of that slowdown; faster: from the scale's lowest color to green, at half. */
function shade(change) {
  if (change >= 0) return heat(1 + change);
  const share = Math.min(1, -change / 0.5);
  const [from, to] = [heat(1), rgb(token('--resolved'))];
  return from.map((value, channel) => Math.round(value + (to[channel] - value) * share));
}

const signed = (value) => (Math.abs(value) < 0.005 ? '0.00' : `${value < 0 ? '−' : '+'}${Math.abs(value).toFixed(2)}`);

class Maps {
  constructor(data, signal) {
    this.data = data;
    const [a, b] = [decoded(data.a), decoded(data.b)];
    this.values = { a, b, d: b.map((value, at) => value - a[at]) };
    this.read = document.getElementById('cell');
    this.elements = [...document.querySelectorAll('[data-map]')];
    for (const element of this.elements) {
      element.addEventListener('mousemove', (event) => this.point(element, event), { signal });
      element.addEventListener('mouseleave', () => { this.read.textContent = ''; }, { signal });
    }
    addEventListener('themechange', () => this.draw(), { signal });
    addEventListener('resize', () => this.draw(), { signal });
    this.draw();
  }

  draw() { for (const element of this.elements) this.one(element); }

  geometry(element) {
    const { dp, pp } = this.data;
    const width = (element.clientWidth - MARGIN.left) / dp;
    const height = (element.clientHeight - MARGIN.top - MARGIN.bottom) / pp;
    return { width, height };
  }

  one(element) {
    const { dp, pp } = this.data;
    const { width, height } = this.geometry(element);
    const canvas = element.querySelector('canvas');
    const ratio = devicePixelRatio || 1;
    canvas.width = Math.round(element.clientWidth * ratio);
    canvas.height = Math.round(element.clientHeight * ratio);
    const context = canvas.getContext('2d');
    context.scale(ratio, ratio);
    const font = getComputedStyle(document.body).fontFamily;
    context.font = `11px ${font}`;
    context.textBaseline = 'middle';
    const values = this.values[element.dataset.map];
    const differs = element.dataset.map === 'd';
    const gap = Math.min(width, height) >= GAP_FROM ? 1 : 0;
    const written = width >= VALUE_WIDTH && height >= VALUE_HEIGHT;
    for (let d = 0; d < dp; d += 1) {
      for (let p = 0; p < pp; p += 1) {
        const value = values[d * pp + p];
        const color = differs ? shade(value) : heat(value);
        const [x, y] = [MARGIN.left + d * width, MARGIN.top + p * height];
        context.fillStyle = `rgb(${color.join()})`;
        context.fillRect(x, y, Math.max(width - gap, 0.5), Math.max(height - gap, 0.5));
        if (written) {
          context.fillStyle = isLight(color) ? '#000' : '#fff';
          context.textAlign = 'center';
          context.fillText(differs ? signed(value) : value.toFixed(2), x + width / 2, y + height / 2);
        }
      }
    }
    context.fillStyle = token('--text-2');
    context.textAlign = 'right';
    for (let p = 0; p < pp; p += every(height, 14)) context.fillText(String(p), MARGIN.left - 6, MARGIN.top + (p + 0.5) * height);
    context.textAlign = 'center';
    const below = element.clientHeight - MARGIN.bottom;
    for (let d = 0; d < dp; d += every(width, 26)) context.fillText(String(d), MARGIN.left + (d + 0.5) * width, below + 10);
    context.textAlign = 'left';
    context.fillText('DP ranks across, stages down', MARGIN.left, below + 24);
    element.dataset.drawn = '';
  }

  point(element, event) {
    const { dp, pp } = this.data;
    const { width, height } = this.geometry(element);
    const box = element.getBoundingClientRect();
    const d = Math.floor((event.clientX - box.left - MARGIN.left) / width);
    const p = Math.floor((event.clientY - box.top - MARGIN.top) / height);
    if (d < 0 || d >= dp || p < 0 || p >= pp) { this.read.textContent = ''; return; }
    const at = d * pp + p;
    this.read.textContent = `Worker ${worker(d, p)}: ${times(this.values.a[at])} before, ${times(this.values.b[at])} after, ${signed(this.values.d[at])}`;
  }
}

function mount({ main, stop }) {
  const block = document.getElementById('maps');
  if (main.dataset.view === 'compare' && block) new Maps(JSON.parse(block.textContent), stop.signal);
}

onPage(mount);
