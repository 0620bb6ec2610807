// What the server sends of a map, what a pixel of it shows, and which part of it is zoomed to.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { decoded, joined, picture, runs, zoomed } from '../../../frontend/static/js/pulse/cells.js';

const MINUTE = Date.parse('2026-05-04T03:02:00Z') / 60_000;

/** A body of two minutes of four ranks on two hosts, whose stages take turns. */
function body(rows, head = {}) {
  const line = JSON.stringify({ ranks: [0, 1, 2, 3], stages: [0, 1, 0, 1], host_of: [0, 0, 1, -1], hosts: ['a', 'b'], starts: rows.map((_, at) => new Date((MINUTE + at) * 60_000).toISOString()), attempts: rows.map(() => 1), left_out: 0, ...head });
  const bytes = new TextEncoder().encode(`${line}\n`);
  const cells = new Uint8Array(new Uint16Array(rows.flat()).buffer);
  const whole = new Uint8Array(bytes.length + cells.length);
  whole.set(bytes);
  whole.set(cells, bytes.length);
  return whole.buffer;
}

test('lines are stage by stage, and hosts are names or not known', () => {
  const cells = decoded(body([[1000, 1001, 1002, 1003]]));
  assert.deepEqual(cells.lines, [0, 2, 1, 3]);
  assert.deepEqual(cells.hosts, ['a', 'a', 'b', null]);
});

test('a pixel shows the slowest of the cells that share it, in the order of lines', () => {
  const cells = decoded(body([[1000, 1400, 1002, 0], [1010, 1001, 1300, 1003]]));
  assert.deepEqual([...picture(cells, cells.lines, MINUTE + 1, 2, 2, 4)], [1000, 1010, 1002, 1300, 1400, 1001, 0, 1003]);
  assert.deepEqual([...picture(cells, cells.lines, MINUTE + 1, 2, 1, 2)], [1300, 1400]);
  // A part of them.
  assert.deepEqual([...picture(cells, [1, 3], MINUTE, 1, 1, 2)], [1400, 0]);
});

test('newer minutes take the place of what was there, and say who is where now', () => {
  const cells = decoded(body([[1000, 1001, 1002, 1003]], { hosts: [], host_of: [-1, -1, -1, -1], stages: [-1, -1, -1, -1] }));
  assert.deepEqual(cells.lines, [0, 1, 2, 3]);
  const both = joined(cells, decoded(body([[1100, 1001, 1002, 1003], [1, 2, 3, 4]])));
  assert.equal(both.minutes.size, 2);
  assert.equal(both.minutes.get(MINUTE)[0], 1100);
  assert.deepEqual(both.lines, [0, 2, 1, 3]);
  assert.equal(both.hosts[2], 'b');
  assert.equal(joined(cells, decoded(body([[1, 2]], { ranks: [0, 1], stages: [0, 0], host_of: [0, 0] }))), null);
});

test('lines that follow one another and are of one host are a run', () => {
  const hosts = ['a', 'a', 'b', null, null, 'a'];
  assert.deepEqual(runs([0, 1, 2, 3, 4, 5], (rank) => hosts[rank]), [
    { name: 'a', from: 0, to: 2 }, { name: 'b', from: 2, to: 3 }, { name: null, from: 3, to: 5 }, { name: 'a', from: 5, to: 6 },
  ]);
  assert.deepEqual(runs([], () => 0), []);
});

test('what is zoomed to stays within the whole, and the place where it is', () => {
  assert.deepEqual(zoomed({ from: 0, size: 1024 }, 512, 0.5, 8, 1024), { from: 256, size: 512 });
  assert.deepEqual(zoomed({ from: 0, size: 1024 }, 0, 0.5, 8, 1024), { from: 0, size: 512 });
  assert.deepEqual(zoomed({ from: 0, size: 1024 }, 1023, 0.5, 8, 1024), { from: 512, size: 512 });
  assert.deepEqual(zoomed({ from: 500, size: 10 }, 505, 0.5, 8, 1024), { from: 501, size: 8 });
  assert.deepEqual(zoomed({ from: 1000, size: 16 }, 1008, 4, 8, 1024), { from: 960, size: 64 });
  assert.deepEqual(zoomed({ from: 100, size: 512 }, 200, 4, 8, 1024), { from: 0, size: 1024 });
  // Of a few there is nothing to zoom to.
  assert.deepEqual(zoomed({ from: 0, size: 4 }, 2, 0.5, 8, 4), { from: 0, size: 4 });
});
