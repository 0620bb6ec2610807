// The search of the documentation: sections that contain all words, those in titles first.
const IN_TITLE = 20;
const WHOLE_TITLE = 40;
const OFTEN = 5;
const AROUND = 60;

/** @param {string} written */
export const wordsOf = (written) => written.toLowerCase().split(/[^\p{L}\p{N}_.-]+/u).filter(Boolean);

/**
 * How well a section matches; 0 if a word is missing.
 * @param {{ title: string, text: string }} section
 * @param {string[]} words
 */
export function score({ title, text }, words) {
  const [head, body] = [title.toLowerCase(), text.toLowerCase()];
  let sum = head === words.join(' ') ? WHOLE_TITLE : 0;
  for (const word of words) {
    const inTitle = head.includes(word) ? IN_TITLE : 0;
    const often = Math.min(body.split(word).length - 1, OFTEN);
    if (!inTitle && !often) return 0;
    sum += inTitle + often;
  }
  return sum;
}

/**
 * The text around the first match.
 * @param {string} text
 * @param {string[]} words
 */
export function snippet(text, words) {
  const plain = text.replace(/\s+/g, ' ').trim();
  const lower = plain.toLowerCase();
  const places = words.map((word) => lower.indexOf(word)).filter((at) => at >= 0);
  const first = places.length ? Math.min(...places) : 0;
  const from = first <= AROUND ? 0 : plain.indexOf(' ', first - AROUND) + 1;
  const end = plain.indexOf(' ', first + 2 * AROUND);
  return `${from ? '… ' : ''}${plain.slice(from, end < 0 ? undefined : end)}${end < 0 ? '' : ' …'}`;
}
