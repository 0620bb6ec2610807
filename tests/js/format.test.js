import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import * as format from '../../frontend/static/js/format.js';

// What the server's own words are held to as well (tests/unit/dashboard/ui/test_format.py).
const CASES = JSON.parse(readFileSync(new URL('number_cases.json', import.meta.url), 'utf8'));
const WRITERS = { ...format, rough_percent: format.roughPercent };

for (const [name, cases] of Object.entries(CASES)) {
  test(`${name} is written as the server writes it`, () => {
    for (const [value, words] of cases) assert.equal(WRITERS[name](value).replaceAll('\u00a0', ' '), words);
  });
}

test('a worker is its DP rank and its stage, which no line breaks', () => {
  assert.equal(format.worker(0, 3), '(0,\u00a03)');
});
