import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';

process.env.TZ = 'Asia/Kolkata';
await import('../../frontend/static/js/zone.js');
const { timeAxis, timeTicks, zoned } = await import('../../frontend/static/js/timeaxis.js');

// What the server writes as well (tests/unit/dashboard/ui/test_moments.py).
const CASES = JSON.parse(readFileSync(new URL('moment_cases.json', import.meta.url), 'utf8'));
const NOW = Date.parse('2026-11-20T09:26:12Z');

function inZone(name, run) {
  process.env.TZ = name;
  try {
    run();
  } finally {
    process.env.TZ = 'Asia/Kolkata';
  }
}

test('a moment in UTC is written as the server writes it', () => {
  for (const [at, form, words] of CASES) assert.equal(zone.words(Date.parse(at), form, { inUtc: true, now: NOW }), words);
});

test('a moment is written in the reader’s zone, with the day that it has there', () => {
  const at = Date.parse('2026-11-19T20:40:00Z');
  assert.equal(zone.words(at, 'short', { now: NOW }), '02:10');
  assert.equal(zone.words(at, 'minute', { now: NOW }), '20 Nov 2026 02:10');
  assert.equal(zone.words(at, 'day', { now: NOW }), '20 Nov');
  assert.equal(zone.words(Date.parse('2026-11-22T20:00:00Z'), 'weekly'), 'Mondays at 01:30');
  assert.equal(zone.offset(at), 'UTC+5:30');
});

test('daylight saving moves the clock, not the moment', () => {
  inZone('America/New_York', () => {
    const texts = ['2026-11-01T05:30:00Z', '2026-11-01T06:30:00Z'].map((at) => zone.words(Date.parse(at), 'minute'));
    assert.deepEqual(texts, ['1 Nov 2026 01:30', '1 Nov 2026 01:30']);
    assert.equal(zone.offset(Date.parse('2026-07-01T00:00:00Z')), 'UTC−4');
    assert.equal(zone.offset(Date.parse('2026-12-01T00:00:00Z')), 'UTC−5');
  });
});

test('a field is read in the zone that it was written in', () => {
  for (const name of ['Asia/Kolkata', 'America/New_York', 'Europe/Berlin']) {
    inZone(name, () => {
      const at = Date.parse('2026-07-01T12:00:00Z');
      assert.equal(zone.read(zone.local(at)), at);
    });
  }
  assert.equal(zone.local(Date.parse('2026-07-01T12:00:00Z')), '2026-07-01T17:30');
});

test('a time axis has round moments of the reader’s clock, in UTC for plotly', () => {
  const found = timeTicks(Date.parse('2026-11-20T00:00:00Z'), Date.parse('2026-11-20T12:00:00Z'), 6);
  assert.deepEqual(found.tickvals.slice(0, 2), ['2026-11-20 00:30:00', '2026-11-20 02:30:00']);
  assert.deepEqual(found.ticktext, ['20 Nov 06:00', '08:00', '10:00', '12:00', '14:00', '16:00']);
  assert.deepEqual(timeTicks(Date.parse('2026-11-20T00:00:01Z'), Date.parse('2026-11-20T00:00:21Z'), 3).ticktext, ['20 Nov 05:30:10', '05:30:20']);
});

test('a time axis says its zone, and what it shows on hover is in that zone', () => {
  const axis = timeAxis({ type: 'date', nticks: 6, title: { text: 'UTC', standoff: 4 }, range: ['2026-11-20 00:00:00', '2026-11-20 12:00:00'] }, 3);
  // Engines call it by its new name or by its old one.
  assert.match(axis.title.text, /^Asia\/(Kolkata|Calcutta)$/);
  assert.equal(axis.title.standoff, 4);
  assert.ok(axis.ticktext.length <= 3);
  const [trace] = zoned([{ customdata: [[4, 'slow<br>20 Nov 2026 02:35:00 UTC', '/sessions/x']] }]);
  assert.deepEqual(trace.customdata, [[4, 'slow<br>20 Nov 2026 08:05:00', '/sessions/x']]);
});
