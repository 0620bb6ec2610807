// Where workers run. The page says it in few words, also of thousands: hosts in runs, names of GPUs once.

export class Places {
  /** What the page says, in which workers come stage by stage, and of how many DP ranks. */
  constructor({ hosts, gpus, ranks }, dp) {
    this.dp = dp;
    this.hosts = hosts.flatMap(([name, count]) => Array(count).fill(name));
    this.gpus = gpus;
    this.ranks = ranks;
  }

  /** Host and GPU of a worker; its rank where the host is not known. */
  of([rank, stage]) {
    const at = stage * this.dp + rank;
    const host = this.hosts[at];
    if (host === null) return `rank ${this.ranks[at]}`;
    const gpu = this.gpus?.names[this.gpus.of[at]];
    return gpu ? `${host} · ${gpu}` : host;
  }
}
