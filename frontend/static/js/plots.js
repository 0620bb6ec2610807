// Figures come from Python (app/dashboard/session/figures.py); this draws them with plotly.js.
import { resolved } from './colors.js';

const CONFIG = { displayModeBar: false, responsive: false, doubleClick: false, scrollZoom: false, showTips: false };
let loading = null;

/** plotly.js, fetched when the first figure needs it. */
function plotly() {
  loading ??= new Promise((resolve, reject) => {
    // plotly adds a style element with the looks of maps, which it skips where there is one of that
    // id. The content security policy refuses it; an empty one is allowed, and maps are not drawn.
    const style = document.createElement('style');
    style.id = document.body.dataset.plotlyStyle;
    const script = document.createElement('script');
    script.src = document.body.dataset.plotly;
    script.onload = () => resolve(window.Plotly);
    script.onerror = () => reject(new Error('plotly.js did not load'));
    document.head.append(style, script);
  });
  return loading;
}

// What the name of a moment takes with the room next to it, in pixels.
const MOMENT = 110;

/** A layout whose time axis names as many moments as fit side by side: plotly would turn them. */
export function fitted(layout, width) {
  const { xaxis } = layout;
  if (xaxis?.type !== 'date') return layout;
  const most = Math.max(2, Math.floor(width / MOMENT));
  return { ...layout, xaxis: { ...xaxis, tickangle: 0, nticks: Math.min(xaxis.nticks ?? most, most) } };
}

/** Draw a figure, or draw it anew. Resolves when it is on the page. */
export async function draw(element, figure) {
  try {
    const library = await plotly();
    if (!element.isConnected) return;
    const { data, layout } = resolved(figure);
    await library.react(element, data, { ...fitted(layout, element.clientWidth), width: element.clientWidth, height: element.clientHeight }, CONFIG);
    element.dataset.drawn = '';
  } catch (error) {
    element.classList.add('failed');
    element.textContent = 'The figure could not be drawn; its data is under CSV.';
    throw error;
  }
}

/** Change a drawn figure's first trace: cheaper than drawing it anew. */
export async function change(element, attributes) {
  const library = await plotly();
  if (element.isConnected) await library.restyle(element, resolved(attributes), [0]);
}

/** Which of `steps` to name below a strip of bars, and where. */
export function stepTicks(steps, barWidth, width) {
  const tickvals = [];
  const ticktext = [];
  let last = -Infinity;
  steps.forEach((step, position) => {
    const x = (position + 0.5) * barWidth;
    const room = 7 * String(step).length + 20;
    if (x - last < room || x > width - room / 3) return;
    tickvals.push(position);
    ticktext.push(String(step));
    last = x;
  });
  return { tickvals, ticktext };
}

/** A figure over steps with as many of them named as fit the element. */
export function withStepTicks(figure, steps, element) {
  const { l, r } = figure.layout.margin;
  const width = element.clientWidth - l - r;
  const ticks = stepTicks(steps, width / steps.length, width);
  return { ...figure, layout: { ...figure.layout, xaxis: { ...figure.layout.xaxis, ...ticks } } };
}
