import assert from 'node:assert/strict';
import { test } from 'node:test';
import '../../frontend/static/js/zone.js';
import { local, written } from '../../frontend/static/js/ranges.js';

test('a moment of the address is shown in the reader’s time and read back as it was', () => {
  for (const moment of ['2026-03-29T00:30Z', '2026-07-01T12:00Z', '2026-12-31T23:59Z']) {
    assert.equal(written(local(Date.parse(moment))), moment);
  }
});

test('what is no moment leaves the field empty, and an empty field the address', () => {
  assert.equal(local(Date.parse('soon')), '');
  assert.equal(written(''), '');
});
