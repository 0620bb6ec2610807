// A rule as its form has it and as the API takes it, and the API's faults in the form's words.

/** Conditions whose numbers are shares in the rule, per cent in the form. */
export const SHARES = new Set(['waste', 'regression', 'discrepancy', 'cause']);
/** Numbers with the unit of the condition, by their places in the form. */
export const SCALED = ['condition.at_least', 'condition.clears_below', 'escalation.at_least'];

// 0.07 and 7, not 7.000000000000001.
const exact = (value) => Number(value.toPrecision(12));

/** A share of the rule is a percentage in the form. */
const share = (kind, written) => (SHARES.has(kind) && written !== null ? exact(written / 100) : written);

function condition({ at_least, ...given }) {
  const { kind } = given;
  if (kind === 'no_data') return given;
  return { ...given, [kind === 'cause' ? 'confidence' : 'at_least']: share(kind, at_least), clears_below: share(kind, given.clears_below) };
}

function escalation(kind, { at_least = null, after_minutes, channels = [] }) {
  if (at_least === null && after_minutes === null && !channels.length) return null;
  return { at_least: share(kind, at_least), after_minutes, channels };
}

/** The rule for the API; `given` is what the form's fields hold. */
export function ruleOf(given, enabled) {
  const { kind } = given.condition;
  if (kind === 'weekly') return { name: given.name ?? '', enabled, condition: given.condition, audience: given.audience, channels: given.channels ?? [] };
  // All of them are the same as none: whatever a job's metadata says.
  const importance = given.selector.importance.length === 3 ? [] : given.selector.importance;
  return {
    // Without data there are no sessions to count.
    consecutive: 1,
    clear_sessions: 1,
    ...given,
    name: given.name ?? '',
    enabled,
    condition: condition(given.condition),
    selector: { ...given.selector, importance },
    escalation: escalation(kind, given.escalation),
  };
}

const SAYS = { string_too_short: 'This is needed.', float_type: 'A number is needed.', int_type: 'A number is needed.' };

/** Where a fault belongs: `condition.slowdown.at_least` is `condition.at_least` in the form. */
export function placeOf(kind, column) {
  const path = column.replace(/^condition\.[^.]+/, 'condition');
  if (path === 'condition') return kind === 'no_data' ? 'condition.minutes' : 'condition.clears_below';
  return path === 'condition.confidence' ? 'condition.at_least' : path;
}

/** The API's words, with the names that the form has. */
export function said(kind, fault, place) {
  if (SAYS[fault.code]) return SAYS[fault.code];
  const plain = fault.message.replace(/^Value error, /, '').replace('clears_below', '“Ends below”').replace(/\b(at_least|confidence)\b/, '“From”');
  const message = plain[0].toUpperCase() + plain.slice(1);
  // The form has per cent where the rule has shares.
  return SHARES.has(kind) && SCALED.includes(place) ? message.replace(/[\d.]+$/, (bound) => `${exact(100 * Number(bound))} %`) : message;
}
