import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import { Places } from '../../../frontend/static/js/sessions/places.js';

// What the server is held to as well (tests/unit/dashboard/session/test_places.py).
const CASES = JSON.parse(readFileSync(new URL('places_cases.json', import.meta.url), 'utf8'));

for (const { about, places, words } of CASES) {
  test(`the place of each worker is said: ${about}`, () => {
    const said = new Places(places, words.length);
    words.forEach((row, rank) => {
      row.forEach((word, stage) => { assert.equal(said.of([rank, stage]), word); });
    });
  });
}
