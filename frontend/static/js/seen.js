// What waits until it is seen.

/**
 * Run once an element comes into view; at once if it is there already.
 * @param {Element} element
 * @param {() => void} run
 * @param {AbortSignal} signal
 */
export function whenSeen(element, run, signal) {
  const watcher = new IntersectionObserver((entries) => {
    if (!entries.some((entry) => entry.isIntersecting)) return;
    watcher.disconnect();
    run();
  });
  watcher.observe(element);
  signal.addEventListener('abort', () => watcher.disconnect(), { once: true });
}
