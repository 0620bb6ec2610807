// A tar of files, made of the files themselves: nothing of them is read into memory here.
const BLOCK = 512;
const NAME = 100;

/** @param {Uint8Array} header @param {number} at @param {string} text */
const put = (header, at, text) => header.set(new TextEncoder().encode(text), at);
const octal = (value, digits) => value.toString(8).padStart(digits, '0');

/**
 * The header of a file, as POSIX's ustar has it.
 * @param {string} name
 * @param {number} size
 */
export function header(name, size) {
  const block = new Uint8Array(BLOCK);
  // The rank is at the end of a name.
  const bytes = new TextEncoder().encode(name);
  block.set(bytes.subarray(Math.max(0, bytes.length - NAME)), 0);
  put(block, 100, '0000644\0');
  put(block, 108, '0000000\0');
  put(block, 116, '0000000\0');
  put(block, 124, `${octal(size, 11)}\0`);
  put(block, 136, '00000000000\0');
  put(block, 148, '        ');
  put(block, 156, '0');
  put(block, 257, 'ustar\0' + '00');
  const sum = block.reduce((all, byte) => all + byte, 0);
  put(block, 148, `${octal(sum, 6)}\0 `);
  return block;
}

/** @param {File[]} files */
export function tar(files) {
  const parts = [];
  for (const file of files) {
    parts.push(header(file.name, file.size), file);
    const rest = file.size % BLOCK;
    if (rest) parts.push(new Uint8Array(BLOCK - rest));
  }
  return new Blob([...parts, new Uint8Array(2 * BLOCK)], { type: 'application/x-tar' });
}
