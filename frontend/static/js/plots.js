// Draws figures with plotly.js, which is loaded when the first of them comes into view.
import { resolved } from './colors.js';
import { whenSeen } from './seen.js';
import { timeAxis, zoned } from './timeaxis.js';

const CONFIG = { displayModeBar: false, responsive: false, doubleClick: false, scrollZoom: false, showTips: false };
/** @type {Promise<PlotlyLibrary> | null} */
let loading = null;

/** Resolves when all else of the page has been loaded. */
const rest = () => new Promise((resolve) => {
  if (document.readyState === 'complete') resolve(null);
  else addEventListener('load', resolve, { once: true });
});

/** plotly.js, loaded for the first figure and after all else. */
function plotly() {
  loading ??= rest().then(() => new Promise((resolve, reject) => {
    // plotly adds a style element for maps, unless there is one with its id. The content security
    // policy refuses it; an empty one is allowed.
    const style = document.createElement('style');
    style.id = document.body.dataset.plotlyStyle;
    const script = document.createElement('script');
    script.src = document.body.dataset.plotly;
    script.onload = () => resolve(window.Plotly);
    script.onerror = () => {
      style.remove();
      script.remove();
      // The next figure, or another attempt, asks for it again.
      loading = null;
      reject(new Error('plotly.js did not load'));
    };
    document.head.append(style, script);
  }));
  return loading;
}

// The width of a time label, with the space next to it, in pixels.
const MOMENT = 110;

/** A layout with as many labels of the time axis as fit side by side: plotly would rotate them. */
export function fitted(layout, width) {
  const { xaxis } = layout;
  if (xaxis?.type !== 'date') return layout;
  const most = Math.max(2, Math.floor(width / MOMENT));
  return { ...layout, xaxis: timeAxis(xaxis, Math.min(xaxis.nticks ?? most, most)) };
}

/** A figure of a page, drawn when it is seen; its place has its size from the start. */
export class Plot {
  /** `drawn` is called each time the figure is on the page. */
  constructor(element, figure, signal, drawn = () => {}) {
    this.element = element;
    this.figure = figure;
    this.drawn = drawn;
    this.seen = false;
    this.say(`Chart: loads ${document.body.dataset.plotlySize} when it comes into view`);
    whenSeen(element, () => {
      this.seen = true;
      this.draw();
    }, signal);
  }

  redraw() { if (this.seen) this.draw(); }

  async draw() {
    const { element } = this;
    if (!window.Plotly) this.say(`Chart: loading ${document.body.dataset.plotlySize}…`);
    element.setAttribute('aria-busy', 'true');
    let library;
    try {
      library = await plotly();
    } catch {
      this.fail();
      return;
    }
    if (!element.isConnected) return;
    if (this.saying) element.replaceChildren();
    this.saying = null;
    element.classList.remove('failed', 'waits');
    element.setAttribute('role', 'img');
    const { data, layout } = resolved(this.figure);
    const shown = layout.xaxis?.type === 'date' ? zoned(data) : data;
    await library.react(element, shown, { ...fitted(layout, element.clientWidth), width: element.clientWidth, height: element.clientHeight }, CONFIG);
    element.removeAttribute('aria-busy');
    element.dataset.drawn = '';
    this.drawn();
  }

  /** Say in the place of the figure what is with it. */
  say(words, ...more) {
    this.saying = document.createElement('p');
    this.saying.className = 'note';
    this.saying.append(words, ...more);
    this.element.classList.add('waits');
    // What the first response has drawn stays until the figure is there.
    const first = this.element.querySelector(':scope > .first');
    this.element.replaceChildren(...(first ? [first] : []), this.saying);
  }

  fail() {
    const { element } = this;
    const again = document.createElement('button');
    again.type = 'button';
    again.className = 'link';
    again.textContent = 'Load it again';
    again.addEventListener('click', () => this.draw());
    element.removeAttribute('aria-busy');
    element.classList.add('failed');
    // What is in a picture cannot be reached with the keyboard.
    element.setAttribute('role', 'group');
    this.say('The chart did not load. Its data is under CSV. ', again);
  }
}
