// "Copy" next to a figure copies its data to the clipboard.
const SAID_MS = 2000;

/** @param {string} words */
async function write(words) {
  if (navigator.clipboard) {
    await navigator.clipboard.writeText(words);
    return;
  }
  // Without TLS, browsers have no clipboard API.
  const area = document.createElement('textarea');
  area.value = words;
  document.body.append(area);
  area.select();
  const done = document.execCommand('copy');
  area.remove();
  if (!done) throw new Error('refused');
}

async function content(button) {
  if (button.dataset.copyText) return document.getElementById(button.dataset.copyText).textContent;
  const response = await fetch(button.dataset.copy);
  if (!response.ok) throw new Error(String(response.status));
  const csv = await response.text();
  // Tab-separated text is pasted into columns; quoted cells may contain commas.
  return csv.includes('"') ? csv : csv.replaceAll(',', '\t');
}

export function copyable(button, signal) {
  const label = button.textContent;
  button.addEventListener('click', async () => {
    try {
      await write(await content(button));
      button.textContent = 'Copied';
    } catch {
      button.textContent = 'Not copied';
    }
    setTimeout(() => { button.textContent = label; }, SAID_MS);
  }, { signal });
}
