// Words and rules over a drawing, as SVG built node by node.
const NS = 'http://www.w3.org/2000/svg';

export function svg(name, attributes = {}, text = null) {
  const node = document.createElementNS(NS, name);
  for (const [key, value] of Object.entries(attributes)) if (value !== null && value !== undefined) node.setAttribute(key, value);
  if (text !== null) node.textContent = text;
  return node;
}

/** An empty layer over an element, in its pixels; words in it are for the eye only. */
export function overlay(element, width, height) {
  let layer = element.querySelector(':scope > .over');
  if (!layer) {
    layer = svg('svg', { class: 'over', 'aria-hidden': 'true' });
    element.append(layer);
  }
  layer.setAttribute('viewBox', `0 0 ${width} ${height}`);
  layer.replaceChildren();
  return layer;
}

export const text = (x, y, words, attributes = {}) => svg('text', { x, y, ...attributes }, words);
export const line = (x1, y1, x2, y2, kind, attributes = {}) => svg('line', { x1, y1, x2, y2, class: kind, ...attributes });
export const rect = (x, y, width, height, kind, attributes = {}) => svg('rect', { x, y, width: Math.max(0, width), height: Math.max(0, height), class: kind, ...attributes });

/** Ticks in round numbers, about `wanted` of them. */
export function niceTick(span, wanted) {
  const raw = span / wanted;
  const magnitude = 10 ** Math.floor(Math.log10(raw));
  return [1, 2, 2.5, 5, 10].map((factor) => factor * magnitude).find((tick) => tick >= raw * (1 - 1e-9));
}
