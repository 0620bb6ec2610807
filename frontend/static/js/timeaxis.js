// Figures over time, in the reader's zone: their data are in UTC, and plotly knows no zones.
const SECOND_MS = 1000;
const MINUTE_MS = 60 * SECOND_MS;
const HOUR_MS = 60 * MINUTE_MS;
const DAY_MS = 24 * HOUR_MS;
const DISTANCES = [
  ...[1, 2, 5, 10, 15, 30].map((seconds) => seconds * SECOND_MS),
  ...[1, 2, 5, 10, 15, 30].map((minutes) => minutes * MINUTE_MS),
  ...[1, 2, 3, 6, 12].map((hours) => hours * HOUR_MS),
  ...[1, 2, 7, 14, 28, 56, 112, 224, 364].map((days) => days * DAY_MS),
];

// Times within words, as app/web/format.py writes them in full.
const EXACT = /\d{1,2} [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d UTC/g;

/** A text with its times in the reader's zone. */
export const inZone = (text) => text.replace(EXACT, (found) => zone.words(Date.parse(found), 'exact'));

const parsed = (text) => Date.parse(`${text.replace(' ', 'T')}Z`);

/**
 * Round moments between two others, at most `most`, as the reader's clock shows them; a label has its day where it
 * is another than that of the label before.
 * @param {number} begin
 * @param {number} end
 * @param {number} most
 */
export function timeTicks(begin, end, most) {
  const distance = DISTANCES.find((one) => (end - begin) / one <= most) ?? DISTANCES[DISTANCES.length - 1];
  const tickvals = [];
  const ticktext = [];
  let day = '';
  for (let local = Math.ceil(zone.moved(begin) / distance) * distance; local <= zone.moved(end); local += distance) {
    const ms = zone.read(new Date(local).toISOString().slice(0, 19));
    const its = zone.words(ms, 'day');
    const clock = distance < MINUTE_MS ? zone.words(ms, 'exact', { bare: true }).slice(-8) : zone.words(ms, 'short', { bare: true, now: ms });
    if (distance >= DAY_MS) ticktext.push(its);
    else ticktext.push(its === day ? clock : `${its} ${clock}`);
    day = its;
    tickvals.push(new Date(ms).toISOString().slice(0, 19).replace('T', ' '));
  }
  return { tickvals, ticktext };
}

/** The time axis of a figure: as many labels as fit side by side, and the name of the zone. */
export function timeAxis(xaxis, most) {
  if (!xaxis.range) return { ...xaxis, nticks: most, tickangle: 0 };
  const [begin, end] = xaxis.range.map(parsed);
  const { nticks: _, ...rest } = xaxis;
  return { ...rest, ...timeTicks(begin, end, most), title: { ...xaxis.title, text: zone.name() }, tickangle: 0 };
}

/** The data of a figure over time, with what it says on hover in the reader's zone. */
export const zoned = (data) => data.map((trace) => (trace.customdata
  ? { ...trace, customdata: trace.customdata.map((values) => values.map((value) => (typeof value === 'string' ? inZone(value) : value))) }
  : trace));
