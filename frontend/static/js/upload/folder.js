// The files of a folder: from a drop or a field, and how they are described to the server.

/** More files are those of a wrong folder. */
export const MOST_FILES = 10_000;
const ARCHIVE = /\.(tar|tgz|zip|tar\.gz|tar\.zst)$/i;
const COMPRESSED = /\.(gz|zst|zip|tgz|parquet)$/i;
const WORTH_COMPRESSING = 1024 * 1024;

/**
 * @typedef {{ name: string, file: Blob }} Named
 * @typedef {{ head: number, tail: number, all: number }} Looks how many bytes of a file, and of all
 */

/** Whether a name is looked at, as the server has it: nothing that is hidden.
 * @param {string} name
 */
export const visible = (name) => !name.split('/').some((part) => part.startsWith('.'));

/** Whether a file is an archive of a folder, which is sent as it is.
 * @param {string} name
 */
export const isArchive = (name) => ARCHIVE.test(name);

/** The files of a field, with their folders.
 * @param {Iterable<File>} list
 * @returns {Named[]}
 */
export function chosen(list) {
  return [...list].map((file) => ({ name: file.webkitRelativePath || file.name, file })).filter(({ name }) => visible(name));
}

/** The files of a drop; its items must be taken before the event ends.
 * @param {Iterable<DataTransferItem>} items
 * @returns {Promise<Named[]>}
 */
export async function dropped(items) {
  const taken = [...items].map((item) => ({ entry: item.webkitGetAsEntry(), file: item.getAsFile() }));
  /** @type {Named[]} */
  const files = [];
  for (const { entry, file } of taken) {
    if (entry) await walk(entry, files);
    else if (file && visible(file.name)) files.push({ name: file.name, file });
  }
  return files.sort((one, other) => (one.name < other.name ? -1 : 1));
}

/**
 * @param {FileSystemEntry} entry
 * @param {Named[]} files
 */
async function walk(entry, files) {
  if (entry.name.startsWith('.')) return;
  if (entry.isFile) {
    if (files.length >= MOST_FILES) throw new Error(`The folder has over ${MOST_FILES.toLocaleString('en-US')} files: drop that of one recording.`);
    /** @type {File} */
    const file = await new Promise((resolve, reject) => { /** @type {FileSystemFileEntry} */ (entry).file(resolve, reject); });
    files.push({ name: entry.fullPath.replace(/^\//, ''), file });
    return;
  }
  const reader = /** @type {FileSystemDirectoryEntry} */ (entry).createReader();
  for (;;) {
    /** @type {FileSystemEntry[]} */
    const some = await new Promise((resolve, reject) => { reader.readEntries(resolve, reject); });
    if (!some.length) return;
    for (const inner of some) await walk(inner, files);
  }
}

/** How files are described to the server: a line of JSON, and beginnings and ends.
 * @param {Named[]} files
 * @param {Looks} looks
 */
export function listing(files, looks) {
  const most = Math.min(looks.head, Math.floor(looks.all / Math.max(1, files.length)));
  const said = files.map(({ name, file }) => ({
    name, size: file.size, head: Math.min(file.size, most), tail: Math.min(file.size, looks.tail),
  }));
  const parts = files.flatMap(({ file }, at) => [file.slice(0, said[at].head), file.slice(file.size - said[at].tail)]);
  return new Blob([`${JSON.stringify({ files: said })}\n`, ...parts]);
}

/** A name for the job: that of the folder; empty for loose files.
 * @param {Named[]} files
 */
export function jobName(files) {
  const tops = new Set(files.map(({ name }) => (name.includes('/') ? name.slice(0, name.indexOf('/')) : '')));
  return tops.size === 1 ? [...tops][0].trim().slice(0, 200) : '';
}

/** A file as it is sent: text is compressed, to a fifteenth or less.
 * @param {Named} named
 * @param {(share: number) => void} progress
 * @returns {Promise<Blob>}
 */
export async function packed({ name, file }, progress) {
  if (COMPRESSED.test(name) || file.size < WORTH_COMPRESSING || !('CompressionStream' in globalThis)) return file;
  let read = 0;
  const counted = new TransformStream({
    transform(piece, controller) {
      read += piece.byteLength;
      progress(read / file.size);
      controller.enqueue(piece);
    },
  });
  return new Response(file.stream().pipeThrough(counted).pipeThrough(new CompressionStream('gzip'))).blob();
}
