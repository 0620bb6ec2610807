import assert from 'node:assert/strict';
import { test } from 'node:test';
import { predicts, presetRow, put, readDevices, shown, writeDevices } from '../../../frontend/static/js/plans/devices.js';

const CATALOGUE = [
  { name: 'V100', memory_bytes: 2 ** 34, peak_tflops: 125 },
  { name: 'A100', memory_bytes: 80 * 2 ** 30, peak_tflops: 312 },
];
const FLOW = `# a model
model: {transformer: {layers: 32}}  # predicted
devices:
  # ours
  - {type: V100, nodes: 2, gpus_per_node: 4}
  - {type: "4090", nodes: 1, gpus_per_node: 2, memory_bytes: 25769803776, forward_ms: [1, 2]}

# of an iteration
microbatches: 32
`;

test('rows are read from every way to write them', () => {
  const cells = (text) => readDevices(text)?.map((row) => ['type', 'nodes', 'memory_bytes'].map((key) => shown(row, key)).join(' '));
  assert.deepEqual(cells(FLOW), ['V100 2 ', '4090 1 24']);
  assert.deepEqual(cells("devices:\n- type: V100\n  nodes: 2\n- type: '4090'   # ours\n  nodes: 1\n  memory_bytes: 25769803776\nmicrobatches: 1\n"), ['V100 2 ', '4090 1 24']);
  assert.deepEqual(cells('devices: [{type: V100, nodes: 2},\n  {type: "4090", nodes: 1, memory_bytes: 25769803776}]\n'), ['V100 2 ', '4090 1 24']);
  assert.deepEqual(cells('devices:\n- {nodes: 2,\n  type: V100}\n'), ['V100 2 ']);
  assert.deepEqual(cells('{"devices": [{"type": "V100", "nodes": 2}]}'), ['V100 2 ']);
  assert.deepEqual(cells('microbatches: 3\n'), []);
});

test('what is not plain rows is left to the text', () => {
  for (const text of ['devices: *ours\n', 'devices:\n  - type: a\n    forward_ms:\n      - 1\n', 'devices:\n  - {type: a\n', '{"devices": 3}', '{"devices": [']) {
    assert.equal(readDevices(text), null, text);
  }
});

test('the rest of the text stays as it was, and unknown fields stay in their row', () => {
  const rows = readDevices(FLOW);
  put(rows[0], 'nodes', '3');
  rows.push(new Map([['type', 'A100'], ['nodes', '1'], ['gpus_per_node', '8']]));
  const text = writeDevices(FLOW, rows);
  assert.equal(text, FLOW.replace('nodes: 2', 'nodes: 3').replace('[1, 2]}\n', '[1, 2]}\n  - {type: A100, nodes: 1, gpus_per_node: 8}\n'));
  assert.equal(writeDevices(text, readDevices(text)), text);
  assert.equal(readDevices(writeDevices(text, [])).length, 0);
  assert.match(writeDevices('microbatches: 3', rows.slice(0, 1)), /^microbatches: 3\ndevices:\n {2}- \{type: V100/);
});

test('a specification in JSON stays one', () => {
  const rows = readDevices('{"microbatches": 2, "devices": [{"type": "4090", "nodes": 2}]}');
  put(rows[0], 'memory_bytes', '24');
  assert.deepEqual(JSON.parse(writeDevices('{"microbatches": 2, "devices": []}', rows)), { microbatches: 2, devices: [{ type: '4090', nodes: 2, memory_bytes: 24 * 2 ** 30 }] });
});

test('what is typed is kept, even where it is no number', () => {
  const row = new Map([['speed', '1.0']]);
  put(row, 'nodes', 'many');
  put(row, 'type', '4090');
  put(row, 'speed', ' ');
  assert.deepEqual([...row], [['nodes', 'many'], ['type', '"4090"']]);
  put(row, 'type', 'no');
  assert.equal(row.get('type'), '"no"');
  assert.equal(shown(row, 'type'), 'no');
});

test('a preset brings what the model needs, under a name of its own', () => {
  const measured = 'model: {layers: [{forward_ms: 1}]}\n';
  assert.ok(predicts(FLOW) && !predicts(measured) && predicts('model:\n  transformer:\n    layers: 2\n'));
  assert.deepEqual([...presetRow(readDevices(FLOW), CATALOGUE[0], CATALOGUE, FLOW)], [['type', 'V100 2'], ['nodes', '1'], ['gpus_per_node', '2']]);
  const row = presetRow([new Map([['type', 'V100'], ['speed', '2']])], CATALOGUE[1], CATALOGUE, measured);
  assert.deepEqual([...row], [['type', 'A100'], ['nodes', '1'], ['gpus_per_node', '8'], ['speed', '4.99'], ['memory_bytes', String(80 * 2 ** 30)]]);
  assert.deepEqual([...presetRow([], undefined, CATALOGUE, FLOW).keys()], ['nodes', 'gpus_per_node']);
});
