import assert from 'node:assert/strict';
import { test } from 'node:test';
import { NO_CHANGE, body, finding, less, read, wording, write } from '../../../frontend/static/js/sessions/question.js';

const STEPS = [5, 6, 7, 10, 11];
const changes = (...given) => given.map((change) => ({ ...NO_CHANGE, ...change }));
const spaced = (words) => words.replaceAll('\u00a0', ' ');

test('a question in an address is read and written back as it was', () => {
  for (const words of [
    'ideal_worker.0.0*x0.5_op.grads-sync_step.10-20',
    'all-ideal*keep_worker.0.0.2.1',
    'peers_stage.3',
    'x2_dp.0.2-3_op.forward-compute.backward-compute',
  ]) {
    const question = read(words);
    assert.ok(question, words);
    assert.deepEqual(new Set(write(question).split(/[*_]/)), new Set(words.split(/[*_]/)));
    assert.deepEqual(read(write(question)), question);
  }
});

test('what is no question is told from one', () => {
  for (const words of ['', 'faster_worker.0.0', 'ideal_worker.0', 'ideal_gpu.1', 'all-ideal', 'ideal_constructor.1', 'x']) {
    assert.equal(read(words), null, words);
  }
});

test('the server gets numbers, and of steps only those that were analyzed', () => {
  const { document, faults } = body(
    { base: 'recorded', changes: changes({ effect: 'scale', scale: ' .5 ', worker: '0:1, (2, 3)', stage: '0, 2-3', step: '6-10' }) },
    STEPS,
  );
  assert.deepEqual(faults, []);
  assert.deepEqual(document, {
    base: 'recorded',
    changes: [{
      select: { workers: [[0, 1], [2, 3]], stages: [0, 2, 3], steps: [6, 7, 10] },
      duration: 'recorded',
      scale: 0.5,
    }],
  });
});

test('a step that was not analyzed is left for the server to refuse', () => {
  const { document } = body({ base: 'recorded', changes: changes({ step: '8-9' }) }, STEPS);
  assert.deepEqual(document.changes[0].select, { steps: [8] });
});

test('faults name the field and what it takes', () => {
  const { faults } = body(
    { base: 'recorded', changes: changes({ worker: 'the slow one' }, { effect: 'scale', scale: '-1', stage: '3-1', dp: '0-99999999' }) },
    STEPS,
  );
  assert.deepEqual(faults.map(({ column }) => column), [
    'changes[0].select.workers',
    'changes[1].select.stages',
    'changes[1].select.dp_ranks',
    'changes[1].scale',
  ]);
  assert.match(faults[0].message, /such as \(0, 0\)/);
});

test('a question says in words what it supposes', () => {
  for (const [words, said] of [
    ['peers_worker.0.0', 'Worker (0, 0) as its peers'],
    ['peers_worker.0.0.1.1', 'Workers (0, 0) and (1, 1) as peers'],
    ['ideal_stage.2-3_step.10', 'Stages 2–3 in step 10 ideal'],
    ['x0.5_op.grads-sync', 'grads-sync ×0.5'],
    ['ideal_op.forward-compute.backward-compute_dp.1', 'computing of DP rank 1 ideal'],
    ['all-ideal*keep_worker.0.0', 'All ideal, worker (0, 0) as recorded'],
    ['ideal_stage.0*ideal_stage.1*ideal_stage.2', 'Stage 0 ideal and 2 more changes'],
  ]) {
    const expected = said.startsWith('computing') ? `C${said.slice(1)}` : said;
    assert.equal(spaced(wording(read(words))), expected);
  }
});

test('gains are said by their direction, and none where there is none', () => {
  assert.equal(spaced(less(0.494)), '49 % less');
  assert.equal(spaced(less(-0.02)), '2.0 % more');
  assert.equal(less(0.0004), 'no change');
  assert.equal(
    spaced(finding(read('peers_worker.0.0'), { gain: 0.5, step_time_s: 22.93 })),
    'Worker (0, 0) as its peers: 22.9 s a step, 50 % less',
  );
});
