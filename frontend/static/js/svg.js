// SVG elements: text and lines over a drawing.
const NS = 'http://www.w3.org/2000/svg';

/**
 * @param {string} name
 * @param {Record<string, unknown>} attributes
 * @param {string | number | null} words
 * @returns {SVGElement}
 */
export function svg(name, attributes = {}, words = null) {
  const node = document.createElementNS(NS, name);
  for (const [key, value] of Object.entries(attributes)) if (value !== null && value !== undefined) node.setAttribute(key, String(value));
  if (words !== null) node.textContent = String(words);
  return /** @type {SVGElement} */ (node);
}

/**
 * An empty layer over an element, in its pixels, hidden from screen readers.
 * @param {HTMLElement} element
 * @param {number} width
 * @param {number} height
 */
export function overlay(element, width, height) {
  /** @type {SVGElement | null} */
  let layer = element.querySelector(':scope > .over');
  if (!layer) {
    layer = svg('svg', { class: 'over', 'aria-hidden': 'true' });
    element.append(layer);
  }
  layer.setAttribute('viewBox', `0 0 ${width} ${height}`);
  layer.replaceChildren();
  return layer;
}

/**
 * @param {number} x
 * @param {number} y
 * @param {string | number} words
 */
export const text = (x, y, words, attributes = {}) => svg('text', { x, y, ...attributes }, words);
/**
 * @param {number} x1
 * @param {number} y1
 * @param {number} x2
 * @param {number} y2
 * @param {string} kind
 */
export const line = (x1, y1, x2, y2, kind, attributes = {}) => svg('line', { x1, y1, x2, y2, class: kind, ...attributes });
/**
 * @param {number} x
 * @param {number} y
 * @param {number} width
 * @param {number} height
 * @param {string} kind
 */
export const rect = (x, y, width, height, kind, attributes = {}) => svg('rect', { x, y, width: Math.max(0, width), height: Math.max(0, height), class: kind, ...attributes });

/**
 * A round distance of ticks, for about `wanted` of them.
 * @param {number} span
 * @param {number} wanted
 * @returns {number}
 */
export function niceTick(span, wanted) {
  const raw = span / wanted;
  const magnitude = 10 ** Math.floor(Math.log10(raw));
  return [1, 2, 2.5, 5].map((factor) => factor * magnitude).find((tick) => tick >= raw * (1 - 1e-9)) ?? 10 * magnitude;
}

const LABELS = [1, 2, 4, 5, 8, 10, 16, 20, 32, 50, 64, 100, 128, 256];
/**
 * Every how many cells of a size a label has room.
 * @param {number} size
 * @param {number} room
 */
export const every = (size, room) => LABELS.find((step) => step * size >= room) ?? 512;
