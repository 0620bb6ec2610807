import assert from 'node:assert/strict';
import { test } from 'node:test';
import { isLight, resolved } from '../../frontend/static/js/colors.js';

test('black is read on light colors, white on dark ones', () => {
  assert.equal(isLight([255, 255, 255]), true);
  assert.equal(isLight([0, 0, 0]), false);
  assert.equal(isLight([0, 0, 255]), false);
  assert.equal(isLight([255, 200, 0]), true);
});

test('numbers of a figure are passed on as they are', () => {
  const values = [1, 2, 3];
  const figure = resolved({ data: [{ x: values, name: 'steps', marker: null }] });
  assert.equal(figure.data[0].x, values);
  assert.deepEqual(figure, { data: [{ x: values, name: 'steps', marker: null }] });
});
