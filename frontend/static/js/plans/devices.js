// The devices of a specification: rows from its text, and the text with other rows.

const GIB = 2 ** 30;
// Words that YAML takes for something else than a name.
const WORDS = new Set(['y', 'n', 'yes', 'no', 'on', 'off', 'true', 'false', 'null']);

/** What a field says, without quotes. */
function plain(raw) {
  if (/^'.*'$/s.test(raw)) return raw.slice(1, -1).replaceAll("''", "'");
  if (/^".*"$/s.test(raw)) {
    try { return JSON.parse(raw); } catch { return raw.slice(1, -1); }
  }
  return raw;
}

/** A value as YAML writes it: a number bare, a name in quotes where it would mean something else. */
function quoted(value, key) {
  if (key !== 'type' && value.trim() !== '' && Number.isFinite(Number(value))) return value.trim();
  const bare = /^[A-Za-z][\w .+-]*$/.test(value) && !WORDS.has(value.toLowerCase());
  return bare ? value.trimEnd() : JSON.stringify(value);
}

/** Pieces of a text between commas that are in no brackets and no quotes. */
function pieces(text) {
  const found = [];
  let depth = 0;
  let quote = '';
  let from = 0;
  for (let at = 0; at < text.length; at += 1) {
    const sign = text[at];
    if (quote) {
      if (sign === '\\' && quote === '"') at += 1;
      else if (sign === quote) quote = '';
    } else if (sign === '"' || sign === "'") quote = sign;
    else if ('[{'.includes(sign)) depth += 1;
    else if (']}'.includes(sign)) depth -= 1;
    else if (sign === ',' && depth === 0) {
      found.push(text.slice(from, at));
      from = at + 1;
    }
  }
  if (depth !== 0 || quote) return null;
  found.push(text.slice(from));
  return found.filter((piece) => piece.trim() !== '');
}

/** A line without its comment. */
function code(line) {
  let quote = '';
  for (let at = 0; at < line.length; at += 1) {
    const sign = line[at];
    if (quote) {
      if (sign === quote) quote = '';
    } else if (sign === '"' || sign === "'") quote = sign;
    else if (sign === '#' && (at === 0 || /\s/.test(line[at - 1]))) return line.slice(0, at).trimEnd();
  }
  return line.trimEnd();
}

/** Keys and values of `{a: 1, b: 2}`, without the braces, or of lines; null where they are not plain. */
function fields(parts) {
  const row = new Map();
  for (const part of parts) {
    const [, key, raw] = /^\s*["']?(\w+)["']?\s*:\s+(.*?)\s*$/s.exec(part) ?? [];
    if (key === undefined || raw === '' || row.has(key) || /^[|>&*!]/.test(raw)) return null;
    row.set(key, raw);
  }
  return row;
}

function item(lines) {
  const text = lines.join('\n').trim();
  if (!text.startsWith('{')) return fields(lines);
  const inside = /^\{(.*)\}$/s.exec(text);
  const parts = inside && pieces(inside[1]);
  return parts && fields(parts);
}

/** Where the block of a key of the outermost level begins and ends, in lines. */
function block(lines) {
  const from = lines.findIndex((line) => /^devices\s*:/.test(line));
  if (from < 0) return null;
  let to = from + 1;
  while (to < lines.length && !/^[^\s#-]/.test(lines[to]) && !/^(---|\.\.\.)/.test(lines[to])) to += 1;
  // Blank lines and comments before the next key belong to it.
  while (to > from + 1 && /^(\s*$|#)/.test(lines[to - 1])) to -= 1;
  return { from, to };
}

function rowsOf(lines) {
  const rows = [];
  let open = null;
  let indent = -1;
  for (const whole of lines) {
    const line = code(whole);
    if (line.trim() === '') continue;
    const [, space, rest] = /^(\s*)-\s+(.*)$/.exec(line) ?? [];
    if (space !== undefined && (indent < 0 || space.length === indent)) {
      indent = space.length;
      open = [rest];
      rows.push(open);
    } else if (open === null) return null;
    else open.push(line);
  }
  const made = rows.map(item);
  return made.includes(null) ? null : made;
}

function jsonRows(text) {
  let document = null;
  try { document = JSON.parse(text); } catch { return null; }
  const list = document?.devices ?? [];
  if (!Array.isArray(list) || list.some((one) => one === null || typeof one !== 'object' || Array.isArray(one))) return null;
  return list.map((one) => new Map(Object.entries(one).map(([key, value]) => [key, typeof value === 'string' ? quoted(value, key) : JSON.stringify(value)])));
}

const isJson = (text) => text.trimStart().startsWith('{');

/**
 * The rows of a specification's devices; null where its text does not let them be edited as rows.
 * @returns {Map<string, string>[] | null} values as the text has them, by key
 */
export function readDevices(text) {
  if (isJson(text)) return jsonRows(text);
  const lines = text.split('\n');
  const at = block(lines);
  if (at === null) return [];
  const inline = code(lines[at.from]).replace(/^devices\s*:\s*/, '');
  if (inline === '') return rowsOf(lines.slice(at.from + 1, at.to));
  const list = /^\[(.*)\]$/s.exec([inline, ...lines.slice(at.from + 1, at.to).map(code)].join('\n').trim());
  const parts = list && pieces(list[1]);
  const rows = parts?.map((part) => item([part.trim()])) ?? null;
  return rows === null || rows.includes(null) ? null : rows;
}

/** The text with these rows as its devices; what else it says stays as it is. */
export function writeDevices(text, rows) {
  if (isJson(text)) {
    const document = JSON.parse(text);
    document.devices = rows.map((row) => Object.fromEntries([...row].map(([key, raw]) => {
      try { return [key, JSON.parse(raw)]; } catch { return [key, plain(raw)]; }
    })));
    return `${JSON.stringify(document, null, 2)}\n`;
  }
  const lines = text.split('\n');
  const at = block(lines);
  const made = rows.map((row) => `  - {${[...row].map(([key, raw]) => `${key}: ${raw}`).join(', ')}}`);
  const head = rows.length ? 'devices:' : 'devices: []';
  if (at === null) return `${text.replace(/\n*$/, '\n')}${[head, ...made].join('\n')}\n`;
  const [, remark = ''] = /(\s+#.*)$/.exec(lines[at.from].slice(code(lines[at.from]).length)) ?? [];
  const comments = lines.slice(at.from + 1, at.to).filter((line) => /^\s*#/.test(line));
  return [...lines.slice(0, at.from), head + remark, ...comments, ...made, ...lines.slice(at.to)].join('\n');
}

/** What a cell of a row shows. */
export function shown(row, key) {
  const raw = row.get(key);
  if (raw === undefined || raw === 'null' || raw === '~') return '';
  if (key !== 'memory_bytes') return plain(raw);
  const bytes = Number(plain(raw));
  return Number.isFinite(bytes) ? String(Number((bytes / GIB).toPrecision(6))) : plain(raw);
}

/** Puts what was typed into a cell into its row; an empty cell says nothing. */
export function put(row, key, typed) {
  if (typed.trim() === '') row.delete(key);
  else if (key === 'memory_bytes' && Number.isFinite(Number(typed))) row.set(key, String(Math.round(Number(typed) * GIB)));
  else row.set(key, quoted(typed, key));
}

/** Whether the text predicts times from a transformer: then types of the catalogue need no more than their name. */
export const predicts = (text) => /^\s*["']?transformer["']?\s*:|[{,]\s*["']?transformer["']?\s*:/m.test(text);

/**
 * A row for a device of the catalogue, or an empty one. Times that are measured need a speed: in proportion to the peaks of those there.
 * @param {{name: string, memory_bytes: number, peak_tflops: number} | undefined} device
 */
export function presetRow(rows, device, catalogue, text) {
  const names = new Set(rows.map((row) => shown(row, 'type')));
  const row = new Map();
  if (device) {
    let name = device.name;
    for (let number = 2; names.has(name); number += 1) name = `${device.name} ${number}`;
    row.set('type', quoted(name, 'type'));
  }
  row.set('nodes', '1');
  const last = rows.at(-1);
  row.set('gpus_per_node', last?.get('gpus_per_node') ?? '8');
  if (device && !predicts(text)) {
    const known = rows.map((one) => [one, catalogue.find((each) => each.name === shown(one, 'type'))]).find(([one, each]) => each && Number(shown(one, 'speed')) > 0);
    const unit = known ? Number(shown(known[0], 'speed')) / known[1].peak_tflops : 1 / catalogue[0].peak_tflops;
    row.set('speed', String(Number((device.peak_tflops * unit).toPrecision(3))));
    row.set('memory_bytes', String(device.memory_bytes));
  }
  return row;
}
