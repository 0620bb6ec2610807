import assert from 'node:assert/strict';
import { test } from 'node:test';
import { niceTick } from '../../frontend/static/js/svg.js';

test('ticks are round numbers, and never more than were wanted', () => {
  for (const [span, wanted, tick] of [[10, 10, 1], [11, 10, 2], [46.3, 10, 5], [0.9, 4, 0.25], [100, 10, 10], [7, 4, 2]]) {
    assert.equal(niceTick(span, wanted), tick);
  }
});

test('a tick is found at every magnitude', () => {
  for (let power = -9; power <= 9; power += 1) {
    for (let digit = 1; digit < 10; digit += 0.125) {
      const span = digit * 10 ** power;
      assert.ok(span / niceTick(span, 10) <= 10 * (1 + 1e-9));
    }
  }
});
