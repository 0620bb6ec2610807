// The hosts and GPUs of workers, from a compact form: runs of hosts, each GPU name once.

export class Places {
  /** The data of the page, with workers stage by stage, and the number of DP ranks. */
  constructor({ hosts, gpus, ranks }, dp) {
    this.dp = dp;
    this.hosts = hosts.flatMap(([name, count]) => Array(count).fill(name));
    this.gpus = gpus;
    this.ranks = ranks;
  }

  /** Host and GPU of a worker; its rank if the host is unknown. */
  of([rank, stage]) {
    const at = stage * this.dp + rank;
    const host = this.hosts[at];
    if (host === null) return `rank ${this.ranks[at]}`;
    const gpu = this.gpus?.names[this.gpus.of[at]];
    return gpu ? `${host} · ${gpu}` : host;
  }
}
