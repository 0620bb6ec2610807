// Tabs: a click or the arrow keys show a panel, whose name is in the address.
const WAYS = { ArrowRight: 1, ArrowLeft: -1 };

function show(list, chosen) {
  for (const tab of list) {
    const on = tab === chosen;
    tab.setAttribute('aria-selected', String(on));
    tab.tabIndex = on ? 0 : -1;
    document.getElementById(tab.getAttribute('aria-controls')).hidden = !on;
  }
}

export function tabbed(element, signal) {
  const list = [...element.querySelectorAll('[role=tab]')];
  const choose = (tab) => {
    show(list, tab);
    history.replaceState(null, '', `#${tab.id}`);
  };
  for (const [place, tab] of list.entries()) {
    tab.addEventListener('click', () => choose(tab), { signal });
    tab.addEventListener('keydown', (event) => {
      if (!(event.key in WAYS)) return;
      const next = list[(place + WAYS[event.key] + list.length) % list.length];
      choose(next);
      next.focus();
    }, { signal });
  }
  const named = list.find((tab) => `#${tab.id}` === location.hash);
  if (named) show(list, named);
}
