// Numbers as text, by the rules of app/web/format.py.
const NBSP = '\u00a0';
/** @param {string} text */
const minus = (text) => (/^-.*[1-9]/.test(text) ? `\u2212${text.slice(1)}` : text.replace(/^-/, ''));

/** @param {number} value */
export const times = (value, digits = 2) => `${minus(value.toFixed(digits))}×`;
/** @param {number} share */
export const percent = (share, digits = 1) => `${minus((100 * share).toFixed(digits))}${NBSP}%`;
/** @param {number} share */
export const roughPercent = (share) => percent(share, Math.abs(share) >= 0.0995 ? 0 : 1);
/**
 * @param {number | string} dp
 * @param {number | string} pp
 */
export const worker = (dp, pp) => `(${dp},${NBSP}${pp})`;
/** @param {number} value */
export const count = (value) => value.toLocaleString('en-US');

/** @param {number} value */
export function seconds(value) {
  const size = Math.abs(value);
  if (size >= 100) return `${Math.round(value).toLocaleString('en-US')}${NBSP}s`;
  if (size >= 10) return `${value.toFixed(1)}${NBSP}s`;
  if (size >= 1) return `${value.toFixed(2)}${NBSP}s`;
  return `${+(1000 * value).toPrecision(3)}${NBSP}ms`;
}

/** @param {number} durationS */
export function age(durationS) {
  const whole = Math.max(0, Math.floor(durationS));
  if (whole < 60) return `${whole}${NBSP}s`;
  if (whole < 3600) return `${Math.floor(whole / 60)}${NBSP}min`;
  if (whole < 86400) {
    const rest = Math.floor((whole % 3600) / 60);
    return `${Math.floor(whole / 3600)}${NBSP}h${rest ? ` ${rest}${NBSP}min` : ''}`;
  }
  return `${Math.floor(whole / 86400)}${NBSP}d`;
}
