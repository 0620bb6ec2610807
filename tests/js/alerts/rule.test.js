import assert from 'node:assert/strict';
import { test } from 'node:test';
import { placeOf, ruleOf, said } from '../../../frontend/static/js/incidents/rule.js';

const given = (condition, more = {}) => ({
  name: 'slow',
  condition,
  selector: { importance: [] },
  escalation: { at_least: null, gpu_hours_per_hour: null, after_minutes: null, channels: [] },
  ...more,
});

test('shares are per cent in the form and fractions in the rule', () => {
  const rule = ruleOf(given({ kind: 'waste', at_least: 7, clears_below: 5.1 }), true);
  assert.deepEqual(rule.condition, { kind: 'waste', at_least: 0.07, clears_below: 0.051 });
  assert.equal(ruleOf(given({ kind: 'headline', at_least: 1.2, clears_below: null }), true).condition.at_least, 1.2);
});

test('the number of a condition on causes is its confidence', () => {
  const rule = ruleOf(given({ kind: 'cause', at_least: 80, clears_below: 60, causes: ['network'] }), true);
  assert.deepEqual(rule.condition, { kind: 'cause', confidence: 0.8, clears_below: 0.6, causes: ['network'] });
});

test('an escalation without anything is none', () => {
  assert.equal(ruleOf(given({ kind: 'no_data', minutes: 30 }), false).escalation, null);
  const escalation = { at_least: 20, gpu_hours_per_hour: 100, after_minutes: 15, channels: ['pager'] };
  assert.deepEqual(ruleOf(given({ kind: 'waste', at_least: 10, clears_below: null }, { escalation }), false).escalation, {
    at_least: 0.2, gpu_hours_per_hour: 100, after_minutes: 15, channels: ['pager'],
  });
});

test('every importance is the same as none', () => {
  const selector = { importance: ['low', 'normal', 'high'], jobs: ['llm'] };
  const rule = ruleOf(given({ kind: 'no_data', minutes: 30 }, { selector }), true);
  assert.deepEqual(rule.selector, { importance: [], jobs: ['llm'] });
});

test('faults of the API have a place in the form', () => {
  assert.equal(placeOf('waste', 'condition.waste.at_least'), 'condition.at_least');
  assert.equal(placeOf('cause', 'condition.cause.confidence'), 'condition.at_least');
  assert.equal(placeOf('waste', 'condition.waste'), 'condition.clears_below');
  assert.equal(placeOf('no_data', 'condition.no_data'), 'condition.minutes');
  assert.equal(placeOf('waste', 'name'), 'name');
});

test('faults are said in the form’s words and units', () => {
  const message = 'clears_below must be below at_least, 0.07';
  assert.equal(said('waste', { message }, 'condition.clears_below'), '“Ends below” must be below “From”, 7 %');
  assert.equal(said('headline', { message }, 'condition.clears_below'), '“Ends below” must be below “From”, 0.07');
  assert.equal(said('waste', { code: 'float_type', message: 'x' }, 'condition.at_least'), 'Enter a number.');
});

test('a weekly rule has neither jobs nor numbers', () => {
  const given = { name: 'Weekly', condition: { kind: 'weekly', weekday: 'monday', hour: 7 }, audience: 'owner', channels: [] };
  assert.deepEqual(ruleOf(given, true), { name: 'Weekly', enabled: true, condition: given.condition, audience: 'owner', channels: [] });
});
