// A rule in the form and for the API, and the API's faults with the names of the form.

/** Conditions with shares in the rule and per cent in the form. */
export const SHARES = new Set(['waste', 'regression', 'discrepancy', 'cause', 'budget.between_steps', 'budget.slow_together']);
/** Paths of the form's numbers with the unit of the condition. */
export const SCALED = ['condition.at_least', 'condition.clears_below', 'escalation.at_least'];

// 0.07 and 7, not 7.000000000000001.
const exact = (value) => Number(value.toPrecision(12));

/** The share of a percentage in the form. */
const share = (kind, written) => (SHARES.has(kind) && written !== null ? exact(written / 100) : written);

function condition({ at_least, ...given }) {
  const { kind } = given;
  if (['no_data', 'hang', 'notice'].includes(kind)) return given;
  return { ...given, [kind === 'cause' ? 'confidence' : 'at_least']: share(kind, at_least), clears_below: share(kind, given.clears_below) };
}

function escalation(kind, { at_least = null, gpu_hours_per_hour = null, after_minutes, channels = [] }) {
  if ([at_least, gpu_hours_per_hour, after_minutes].every((limit) => limit === null) && !channels.length) return null;
  return { at_least: share(kind, at_least), gpu_hours_per_hour, after_minutes, channels };
}

/** The rule for the API from the values of the form. */
export function ruleOf(given, enabled) {
  const { kind } = given.condition;
  if (kind === 'weekly') return { name: given.name ?? '', enabled, condition: given.condition, audience: given.audience, channels: given.channels ?? [] };
  // All values select the same jobs as none.
  const importance = given.selector.importance.length === 3 ? [] : given.selector.importance;
  return {
    // For a rule without data, which counts no sessions.
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

const SAYS = { string_too_short: 'Required.', float_type: 'Enter a number.', int_type: 'Enter a number.' };

/** The path of a fault in the form: `condition.at_least` for `condition.slowdown.at_least`. */
export function placeOf(kind, column) {
  const path = column.replace(/^condition\.[^.]+/, 'condition');
  if (path === 'condition') return kind === 'no_data' ? 'condition.minutes' : 'condition.clears_below';
  return path === 'condition.confidence' ? 'condition.at_least' : path;
}

/** The message of a fault, with the names of the form. */
export function said(kind, fault, place) {
  if (SAYS[fault.code]) return SAYS[fault.code];
  const plain = fault.message.replace('clears_below', '“Ends below”').replace(/\b(at_least|confidence)\b/, '“From”');
  const message = plain[0].toUpperCase() + plain.slice(1);
  // Per cent for shares.
  return SHARES.has(kind) && SCALED.includes(place) ? message.replace(/[\d.]+$/, (bound) => `${exact(100 * Number(bound))} %`) : message;
}
