// Loaded before anything is drawn, so that no page flashes in the wrong colors.
// The system's choice holds unless the reader made one; ?theme= wins, so that a link can show either.
(() => {
  const root = document.documentElement;
  const CHOICES = ['system', 'light', 'dark'];
  const stored = () => {
    try {
      return localStorage.getItem('theme');
    } catch {
      return null; // storage is refused in some private windows
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
      // Begins with what is seen: who speaks to the browser says that.
      button.setAttribute('aria-label', `${button.textContent}: switch to ${next}`);
    };
    button.hidden = false;
    button.addEventListener('click', () => {
      choice = CHOICES[(CHOICES.indexOf(choice) + 1) % CHOICES.length];
      try {
        localStorage.setItem('theme', choice);
      } catch {
        // then it holds for this page
      }
      apply(choice);
      say();
      dispatchEvent(new Event('themechange'));
    });
    say();
  });
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => dispatchEvent(new Event('themechange')));
})();
