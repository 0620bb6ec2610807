// Draws the figures of app/dashboard/session/figures.py with plotly.js.
import { resolved } from './colors.js';

const CONFIG = { displayModeBar: false, responsive: false, doubleClick: false, scrollZoom: false, showTips: false };
let loading = null;

/** plotly.js, loaded for the first figure. */
function plotly() {
  loading ??= new Promise((resolve, reject) => {
    // plotly adds a style element for maps, unless there is one with its id. The content security
    // policy refuses it; an empty one is allowed.
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

// The width of a time label, with the space next to it, in pixels.
const MOMENT = 110;

/** A layout with as many labels of the time axis as fit side by side: plotly would rotate them. */
export function fitted(layout, width) {
  const { xaxis } = layout;
  if (xaxis?.type !== 'date') return layout;
  const most = Math.max(2, Math.floor(width / MOMENT));
  return { ...layout, xaxis: { ...xaxis, tickangle: 0, nticks: Math.min(xaxis.nticks ?? most, most) } };
}

/** Draw a figure; resolves when it is on the page. */
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

/** Change the first trace of a figure, which is faster than drawing it again. */
export async function change(element, attributes) {
  const library = await plotly();
  if (element.isConnected) await library.restyle(element, resolved(attributes), [0]);
}

/** Which of `steps` to label below a strip of bars, and where. */
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

/** A figure over steps, with as many labels as fit the element. */
export function withStepTicks(figure, steps, element) {
  const { l, r } = figure.layout.margin;
  const width = element.clientWidth - l - r;
  const ticks = stepTicks(steps, width / steps.length, width);
  return { ...figure, layout: { ...figure.layout, xaxis: { ...figure.layout.xaxis, ...ticks } } };
}
