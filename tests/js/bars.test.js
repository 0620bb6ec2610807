import assert from 'node:assert/strict';
import { test } from 'node:test';
import { stepTicks } from '../../frontend/static/js/bars.js';

const steps = Array.from({ length: 40 }, (_, at) => 1000 + at);

test('every step is named where there is room', () => {
  assert.deepEqual(stepTicks([4, 5, 6], 100, 300).ticktext, ['4', '5', '6']);
});

test('named steps leave room for each other and for the end of the strip', () => {
  const width = 400;
  const each = width / steps.length;
  const { tickvals, ticktext } = stepTicks(steps, each, width);
  assert.deepEqual(ticktext, tickvals.map((at) => String(steps[at])));
  const room = 7 * 4 + 20;
  tickvals.slice(1).forEach((at, before) => { assert.ok((at - tickvals[before]) * each >= room); });
  assert.ok((tickvals.at(-1) + 0.5) * each <= width - room / 3);
});
