// A what-if question: in the form, in the address, for the server, and as text.
//
// In the address, changes are separated by *, effect and places by _, values by dots, characters that are not
// encoded there: ideal_worker.0.0*x0.5_op.grads-sync_step.10-20.
import { roughPercent, seconds, worker } from '../format.js';

const ALL_IDEAL = 'all-ideal';
// Longer ranges are typing errors.
const MOST = 65536;

/** Fields that select operations, with their names in the form and for the server. */
export const FIELDS = {
  worker: { label: 'Worker', key: 'workers', wanted: 'workers such as (0, 0), (2, 1)' },
  stage: { label: 'Stage', key: 'stages', wanted: 'stages such as 0, 2-3' },
  dp: { label: 'DP rank', key: 'dp_ranks', wanted: 'DP ranks such as 0, 2-3' },
  step: { label: 'Step', key: 'steps', wanted: 'steps such as 7, 10-20' },
  op: { label: 'Operation type', key: 'op_types' },
};
export const NO_CHANGE = { effect: 'ideal', scale: '0.5', worker: '', stage: '', dp: '', step: '', op: '' };

/** Pairs from "(0, 0), (2, 1)" or "0:0"; null for anything else. */
function workers(words) {
  const pairs = [];
  const rest = words.replace(/\(?\s*(\d+)\s*[,:]\s*(\d+)\s*\)?/g, (_, dp, pp) => { pairs.push([Number(dp), Number(pp)]); return ''; });
  return /[^\s,]/.test(rest) ? null : pairs;
}

/** Ranges from "0, 2-3"; null for anything else. */
function ranges(words) {
  const parts = words.split(/[\s,]+/).filter(Boolean);
  const found = parts.map((part) => /^(\d+)(?:[-–](\d+))?$/.exec(part));
  return found.includes(null) ? null : found.map(([, first, last]) => [Number(first), Number(last ?? first)]);
}

const spans = (found, dash = '-') => found.map(([first, last]) => (first === last ? String(first) : `${first}${dash}${last}`));

/** The question in an address; null if it is not valid. */
export function read(words) {
  const parts = words.split('*');
  const base = parts[0] === ALL_IDEAL ? 'ideal' : 'recorded';
  const changes = (base === 'ideal' ? parts.slice(1) : parts).map(readChange);
  return changes.length && !changes.includes(null) ? { base, changes } : null;
}

function readChange(words) {
  const [effect, ...conditions] = words.split('_');
  const change = { ...NO_CHANGE };
  if (['ideal', 'peers', 'keep'].includes(effect)) change.effect = effect;
  else if (/^x[\d.]/.test(effect)) Object.assign(change, { effect: 'scale', scale: effect.slice(1) });
  else return null;
  for (const condition of conditions) {
    const [name, ...values] = condition.split('.');
    if (!Object.hasOwn(FIELDS, name) || !values.length) return null;
    if (name === 'op') change.op = values.join('.');
    else if (name === 'worker') {
      if (values.length % 2) return null;
      change.worker = values.flatMap((value, at) => (at % 2 ? [] : [worker(value, values[at + 1])])).join(', ');
    } else change[name] = values.join(', ');
  }
  return change;
}

/** A question as text for the address. */
export function write({ base, changes }) {
  return [...(base === 'ideal' ? [ALL_IDEAL] : []), ...changes.map(writeChange)].join('*');
}

function writeChange(change) {
  const parts = [change.effect === 'scale' ? `x${change.scale.trim()}` : change.effect];
  if (change.worker.trim()) parts.push(['worker', ...workers(change.worker).flat()].join('.'));
  for (const name of ['stage', 'dp', 'step']) {
    if (change[name].trim()) parts.push([name, ...spans(ranges(change[name]))].join('.'));
  }
  if (change.op) parts.push(`op.${change.op}`);
  return parts.join('_');
}

/** A question for the server, and faults of invalid fields, with paths as the server has them. */
export function body({ base, changes }, steps) {
  const faults = [];
  const entries = changes.map((change, at) => {
    const select = {};
    const add = (name, values) => {
      const { key, wanted } = FIELDS[name];
      if (values?.length) select[key] = values;
      else if (change[name].trim()) faults.push({ column: `changes[${at}].select.${key}`, message: `Enter ${wanted}` });
    };
    add('worker', workers(change.worker));
    for (const name of ['stage', 'dp', 'step']) add(name, expand(ranges(change[name]), name === 'step' ? steps : null));
    if (change.op) select.op_types = change.op.split('.');
    const scale = change.effect === 'scale' ? change.scale.trim() : '1';
    if (!/^(\d+\.?\d*|\.\d+)$/.test(scale)) faults.push({ column: `changes[${at}].scale`, message: 'Enter a number of 0 or more, such as 0.5' });
    return { select, duration: ['ideal', 'peers'].includes(change.effect) ? change.effect : 'recorded', scale: Number(scale) };
  });
  return { document: { base, changes: entries }, faults };
}

/** All values of ranges; of steps only analyzed ones, unless a range has none. */
function expand(found, known) {
  if (found?.some(([first, last]) => last < first || last - first > MOST)) return null;
  return found?.flatMap(([first, last]) => {
    if (!known) return Array.from({ length: last - first + 1 }, (_, at) => first + at);
    const held = known.filter((value) => value >= first && value <= last);
    return held.length ? held : [first];
  });
}

function listing(names) {
  if (names.length > 3) return `${names.slice(0, 2).join(', ')} and ${names.length - 2} more`;
  return names.length > 1 ? `${names.slice(0, -1).join(', ')} and ${names.at(-1)}` : names.join();
}

/** "stage 3", "stages 0 and 2-3"; empty without names. */
const named = (noun, names) => (names.length ? `${noun}${names.length > 1 || /^\d+–/.test(names[0]) ? 's' : ''} ${listing(names)}` : '');

/** The operations of a change, as text. */
function whom(change) {
  const where = [
    named('worker', workers(change.worker).map(([dp, pp]) => worker(dp, pp))),
    named('stage', spans(ranges(change.stage), '–')),
    named('DP rank', spans(ranges(change.dp), '–')),
  ].filter(Boolean).join(', ');
  const when = named('step', spans(ranges(change.step), '–'));
  const types = change.op.split('.').filter(Boolean);
  const what = types.length > 1 && types.every((name) => name.endsWith('-compute')) ? 'computing' : listing(types);
  const whose = what && where ? `${what} of ${where}` : what || where;
  return whose && when ? `${whose} in ${when}` : whose || when;
}

const EFFECTS = { ideal: () => 'ideal', peers: (change) => (workers(change.worker).length === 1 ? 'as its peers' : 'as peers'), keep: () => 'as recorded', scale: (change) => `×${Number(change.scale)}` };
const clause = (change) => `${whom(change)} ${EFFECTS[change.effect](change)}`;

/** The changes of a question, as text. */
export function wording({ base, changes }) {
  const clauses = changes.length > 2 ? `${clause(changes[0])} and ${changes.length - 1} more changes` : changes.map(clause).join(', ');
  const whole = base === 'ideal' ? `all ideal, ${clauses}` : clauses;
  // Names of operation types keep their case.
  return /^(all|computing|workers?|stages?|steps?) /.test(whole) ? whole[0].toUpperCase() + whole.slice(1) : whole;
}

/** A gain as text: "49 % less". */
export function less(gain) {
  return Math.abs(gain) < 0.0005 ? 'no change' : `${roughPercent(Math.abs(gain))} ${gain > 0 ? 'less' : 'more'}`;
}

/** The finding: the time of a step, and the gain. */
export function finding(question, { gain, step_time_s: stepTimeS }) {
  return `${wording(question)}: ${seconds(stepTimeS)} a step, ${less(gain)}`;
}
