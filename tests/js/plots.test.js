import assert from 'node:assert/strict';
import { test } from 'node:test';
import { fitted, stepTicks, withStepTicks } from '../../frontend/static/js/plots.js';

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

test('a figure gets its ticks without being changed itself', () => {
  const figure = Object.freeze({ data: [], layout: Object.freeze({ margin: { l: 10, r: 10 }, xaxis: Object.freeze({ title: 'Step' }) }) });
  const ticked = withStepTicks(figure, [7, 8], { clientWidth: 220 });
  assert.deepEqual(ticked.layout.xaxis, { title: 'Step', tickvals: [0, 1], ticktext: ['7', '8'] });
});

test('a time axis names as many moments as fit side by side, and turns none', () => {
  const layout = { height: 300, xaxis: { type: 'date', nticks: 6, title: 'UTC' } };
  assert.deepEqual(fitted(layout, 1200).xaxis, { type: 'date', nticks: 6, title: 'UTC', tickangle: 0 });
  assert.equal(fitted(layout, 358).xaxis.nticks, 3);
  assert.equal(fitted(layout, 100).xaxis.nticks, 2);
  const steps = { xaxis: { nticks: 6 } };
  assert.equal(fitted(steps, 358), steps);
});
