// The design tokens, with the values of the current theme.
const LOW = 1;
const STEP = 0.05;
const STOPS = 11;
/** @type {{ style: CSSStyleDeclaration, known: Map<string, string>, scale: number[][] | null } | null} */
let cache = null;

function tokens() {
  if (!cache) {
    cache = { style: getComputedStyle(document.documentElement), known: new Map(), scale: null };
    addEventListener('themechange', () => { cache = null; }, { once: true });
  }
  return cache;
}

/**
 * @param {string} name
 * @returns {string}
 */
export function token(name) {
  const { style, known } = tokens();
  const value = known.get(name) ?? style.getPropertyValue(name).trim();
  known.set(name, value);
  return value;
}

/** @param {string} hex */
const rgb = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));

function scale() {
  const theme = tokens();
  theme.scale ??= Array.from({ length: STOPS }, (_, stop) => rgb(token(`--s-${100 + 5 * stop}`)));
  return theme.scale;
}

/**
 * Red, green and blue of a slowdown on the fixed scale from 1.0 to 1.5.
 * @param {number} slowdown
 */
export function heat(slowdown) {
  const stops = scale();
  const position = Math.min(STOPS - 1, Math.max(0, (slowdown - LOW) / STEP));
  const below = Math.min(STOPS - 2, Math.floor(position));
  const share = position - below;
  return stops[below].map((value, channel) => Math.round(value + (stops[below + 1][channel] - value) * share));
}

/**
 * Whether black is more readable on a color than white.
 * @param {number[]} color
 */
export function isLight(color) {
  const [red, green, blue] = color.map((value) => {
    const share = value / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179;
}

/**
 * A copy of a figure with the values of its tokens.
 * @param {any} value
 * @returns {any}
 */
export function resolved(value) {
  if (typeof value === 'string') return value.includes('var(') ? value.replace(/var\((--[\w-]+)\)/g, (_, name) => token(name)) : value;
  if (Array.isArray(value)) return typeof value[0] === 'number' && typeof value.at(-1) === 'number' ? value : value.map(resolved);
  if (value && typeof value === 'object') return Object.fromEntries(Object.entries(value).map(([key, part]) => [key, resolved(part)]));
  return value;
}
