import assert from 'node:assert/strict';
import { test } from 'node:test';
import { timelineHeight } from '../../../frontend/static/js/sessions/timeline.js';

test('a timeline keeps its height for its lanes before they are there', () => {
  const [one, two] = [timelineHeight(1, 4), timelineHeight(2, 4)];
  assert.ok(two > one);
  // From thirteen lanes on they are lower.
  assert.ok(timelineHeight(4, 4) - timelineHeight(3, 4) < two - one);
});
