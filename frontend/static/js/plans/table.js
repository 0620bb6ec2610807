// The table of devices in the form of a plan, in step with the specification's text.
import { presetRow, put, readDevices, shown, writeDevices } from './devices.js';

const KEYS = ['type', 'nodes', 'gpus_per_node', 'speed', 'memory_bytes'];

export class DeviceTable {
  constructor(form, catalogue, signal) {
    this.text = /** @type {HTMLTextAreaElement} */ (form.elements.spec);
    this.catalogue = catalogue;
    this.body = /** @type {HTMLTableSectionElement} */ (document.getElementById('device-rows'));
    this.blank = /** @type {HTMLTemplateElement} */ (document.getElementById('device-row'));
    this.preset = /** @type {HTMLSelectElement} */ (document.getElementById('preset'));
    this.adding = /** @type {HTMLButtonElement} */ (document.getElementById('add-device'));
    this.said = document.getElementById('devices-said');
    this.rows = [];
    const on = (target, name, run) => target.addEventListener(name, run, { signal });
    on(this.text, 'input', () => this.read());
    on(this.body, 'input', (event) => this.typed(event.target));
    on(this.body, 'click', (event) => {
      const button = event.target.closest('[data-remove]');
      if (button) this.remove(button.closest('tr'));
    });
    on(this.adding, 'click', () => this.add());
    this.adding.disabled = false;
    this.read();
  }

  /** Shows what the text says. Cells that say the same already are left alone. */
  read() {
    const rows = readDevices(this.text.value);
    const apart = rows === null;
    for (const control of [this.adding, this.preset, ...this.body.querySelectorAll('input, button')]) {
      /** @type {HTMLButtonElement} */ (control).disabled = apart;
    }
    if (apart) {
      this.say('These devices can only be edited in the text.');
      return;
    }
    if (this.said.textContent !== '') this.say('');
    this.rows = rows;
    while (this.body.rows.length > rows.length) this.body.rows[this.body.rows.length - 1].remove();
    while (this.body.rows.length < rows.length) this.body.append(this.blank.content.cloneNode(true));
    rows.forEach((row, at) => { this.fill(this.body.rows[at], row, at); });
  }

  fill(line, row, at) {
    for (const key of KEYS) {
      const cell = /** @type {HTMLInputElement} */ (line.querySelector(`[data-key=${key}]`));
      const value = shown(row, key);
      if (cell.value !== value) cell.value = value;
      cell.setAttribute('aria-label', `${cell.dataset.name}, row ${at + 1}`);
    }
    line.querySelector('[data-remove]').setAttribute('aria-label', `Remove row ${at + 1}`);
  }

  typed(cell) {
    const line = cell.closest('tr');
    put(this.rows[line.sectionRowIndex], cell.dataset.key, cell.value);
    cell.removeAttribute('aria-invalid');
    this.write();
  }

  add() {
    const device = this.catalogue.find((one) => one.name === this.preset.value);
    const row = presetRow(this.rows, device, this.catalogue, this.text.value);
    this.rows.push(row);
    this.body.append(this.blank.content.cloneNode(true));
    const line = this.body.rows[this.rows.length - 1];
    this.fill(line, row, this.rows.length - 1);
    this.write();
    /** @type {HTMLElement} */ (line.querySelector(device ? '[data-key=nodes]' : '[data-key=type]')).focus();
  }

  remove(line) {
    const at = line.sectionRowIndex;
    this.rows.splice(at, 1);
    line.remove();
    this.rows.forEach((row, place) => { if (place >= at) this.fill(this.body.rows[place], row, place); });
    this.write();
    const next = this.body.rows[Math.min(at, this.rows.length - 1)];
    /** @type {HTMLElement} */ (next?.querySelector('[data-remove]') ?? this.adding).focus();
  }

  write() { this.text.value = writeDevices(this.text.value, this.rows); }

  say(words) { this.said.textContent = words; }

  /** Marks the cell that a fault is about; null where it is about none. */
  mark(path) {
    const [, at, key] = /^devices\[(\d+)\]\.(\w+)/.exec(path ?? '') ?? [];
    const cell = key && this.body.rows[at]?.querySelector(`[data-key=${key}]`);
    cell?.setAttribute('aria-invalid', 'true');
    return cell ?? null;
  }
}
