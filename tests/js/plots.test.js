import assert from 'node:assert/strict';
import { test } from 'node:test';
import { fitted } from '../../frontend/static/js/plots.js';

test('a time axis names as many moments as fit side by side, and turns none', () => {
  const layout = { height: 300, xaxis: { type: 'date', nticks: 6 } };
  assert.deepEqual(fitted(layout, 1200).xaxis, { type: 'date', nticks: 6, tickangle: 0 });
  assert.equal(fitted(layout, 358).xaxis.nticks, 3);
  assert.equal(fitted(layout, 100).xaxis.nticks, 2);
  const steps = { xaxis: { nticks: 6 } };
  assert.equal(fitted(steps, 358), steps);
});
