// Loaded before the first paint, so that no page flashes in the wrong colors. The theme is that of ?theme=,
// else the reader's choice, else the system's.
(() => {
  const root = document.documentElement;
  const CHOICES = ['system', 'light', 'dark'];
  const stored = () => {
    try {
      return localStorage.getItem('theme');
    } catch {
      return null; // some private windows refuse storage
    }
  };
  const apply = (choice) => {
    if (choice === 'light' || choice === 'dark') root.dataset.theme = choice;
    else delete root.dataset.theme;
  };
  const asked = new URLSearchParams(location.search).get('theme') || stored();
  let choice = CHOICES.includes(asked) ? asked : 'system';
  apply(choice);

  addEventListener('DOMContentLoaded', () => {
    const button = document.getElementById('theme');
    const say = () => {
      const next = CHOICES[(CHOICES.indexOf(choice) + 1) % CHOICES.length];
      button.textContent = `${choice[0].toUpperCase()}${choice.slice(1)} theme`;
      // Begins with the visible text, which voice control uses.
      button.setAttribute('aria-label', `${button.textContent}: switch to ${next}`);
    };
    button.hidden = false;
    button.addEventListener('click', () => {
      choice = CHOICES[(CHOICES.indexOf(choice) + 1) % CHOICES.length];
      try {
        localStorage.setItem('theme', choice);
      } catch {
        // Refused: it applies to this page only.
      }
      apply(choice);
      say();
      dispatchEvent(new Event('themechange'));
    });
    say();
  });
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => dispatchEvent(new Event('themechange')));
})();
