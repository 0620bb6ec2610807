import assert from 'node:assert/strict';
import { test } from 'node:test';
import { gunzipSync } from 'node:zlib';
import { chosen, dropped, isArchive, jobName, listing, packed } from '../../../frontend/static/js/upload/folder.js';

const named = (name, text) => ({ name, file: new Blob([text]) });
const LOOKS = { head: 4, tail: 3, all: 1000 };

test('the server is told names and sizes, and gets beginnings and ends', async () => {
  const body = await listing([named('a/rank0.json', '0123456789'), named('b', 'xy')], LOOKS).text();
  const [line, rest] = [body.slice(0, body.indexOf('\n')), body.slice(body.indexOf('\n') + 1)];
  assert.deepEqual(JSON.parse(line), { files: [
    { name: 'a/rank0.json', size: 10, head: 4, tail: 3 },
    { name: 'b', size: 2, head: 2, tail: 2 },
  ] });
  assert.equal(rest, '0123789xyxy');
});

test('of very many files the beginnings are shorter', async () => {
  const files = Array.from({ length: 10 }, (_, at) => named(`rank${at}`, '0123456789'));
  const body = await listing(files, { head: 8, tail: 0, all: 30 }).text();
  assert.equal(JSON.parse(body.split('\n')[0]).files[9].head, 3);
  assert.equal(body.split('\n')[1].length, 30);
});

test('hidden files are left out, whatever their folder', () => {
  const list = [{ webkitRelativePath: 'traces/.git/config', name: 'config' }, { webkitRelativePath: '', name: 'rank0.json' }, { webkitRelativePath: '.DS_Store', name: '.DS_Store' }];
  assert.deepEqual(chosen(list).map(({ name }) => name), ['rank0.json']);
});

const entry = (path, inside) => ({
  name: path.slice(path.lastIndexOf('/') + 1),
  fullPath: path,
  isFile: !inside,
  file: (take) => take(new Blob([path])),
  // Browsers give at most a hundred at once, and an empty list at the end.
  createReader: () => ({ left: [...(inside ?? [])], readEntries(take) { take(this.left.splice(0, 1)); } }),
});

test('a dropped folder is walked to its last file', async () => {
  const folder = entry('/traces', [entry('/traces/node-1', [entry('/traces/node-1/rank1.json')]), entry('/traces/rank0.json'), entry('/traces/.cache', [entry('/traces/.cache/x')])]);
  const loose = { webkitGetAsEntry: () => null, getAsFile: () => Object.assign(new Blob(['x']), { name: 'rank2.json' }) };
  const text = { webkitGetAsEntry: () => null, getAsFile: () => null };
  const files = await dropped([{ webkitGetAsEntry: () => folder, getAsFile: () => null }, loose, text]);
  assert.deepEqual(files.map(({ name }) => name), ['rank2.json', 'traces/node-1/rank1.json', 'traces/rank0.json']);
});

test('the job has the name of the folder, and loose files have none', () => {
  assert.equal(jobName([named('llama/rank0.json', ''), named('llama/a/b', '')]), 'llama');
  assert.equal(jobName([named('llama/rank0.json', ''), named('gpt/rank0.json', '')]), '');
  assert.equal(jobName([named('rank0.json', '')]), '');
});

test('archives are told by their name', () => {
  for (const name of ['a.tar', 'a.TGZ', 'a.tar.gz', 'a.tar.zst', 'a.zip']) assert.ok(isArchive(name), name);
  for (const name of ['a.json.gz', 'tar', 'a.zipped']) assert.ok(!isArchive(name), name);
});

test('text is compressed before it is sent, and what is compressed is not', async () => {
  const text = '{"ph": "X"} '.repeat(200_000);
  const shares = [];
  const sent = await packed(named('rank0.json', text), (share) => shares.push(share));
  assert.ok(sent.size < text.length / 15);
  assert.equal(gunzipSync(Buffer.from(await sent.arrayBuffer())).toString(), text);
  assert.equal(shares.at(-1), 1);
  for (const one of [named('rank0.json.gz', text), named('rank0.json', 'short')]) {
    assert.equal(await packed(one, () => {}), one.file);
  }
});
