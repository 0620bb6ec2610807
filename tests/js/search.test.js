import assert from 'node:assert/strict';
import { test } from 'node:test';
import { score, snippet, wordsOf } from '../../frontend/docs/assets/search.js';

const section = (title, text) => ({ title, text });

test('every word has to be there', () => {
  const heat = section('Thermal throttling', 'A worker grows slower and recovers.');
  assert.ok(score(heat, ['thermal', 'recovers']) > 0);
  assert.equal(score(heat, ['thermal', 'network']), 0);
});

test('a section that is called so comes before those that say so', () => {
  const called = score(section('Network', 'Transfers take long.'), ['network']);
  const part = score(section('Network errors', 'Transfers take long.'), ['network']);
  const says = score(section('Slow worker', 'network '.repeat(50)), ['network']);
  assert.ok(called > part && part > says);
});

test('names of settings and codes are one word', () => {
  assert.deepEqual(wordsOf(' PACELINE_DATA_DIR, trace.protobuf '), ['paceline_data_dir', 'trace.protobuf']);
});

test('what is shown begins and ends at words, around what was found', () => {
  const text = `${'before '.repeat(30)}needle ${'after '.repeat(60)}`;
  const shown = snippet(text, ['needle']);
  assert.match(shown, /^… before .*needle .*after …$/);
  assert.ok(shown.length < 220);
  assert.equal(snippet('short text', ['nothing']), 'short text');
});
