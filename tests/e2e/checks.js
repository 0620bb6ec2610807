// What a person sees on a page, as checks that run in the browser.
({
  // Texts whose contrast with what is behind them is below AA: 4.5, or 3 from 24 pixels on.
  lowContrast() {
    const channel = (value) => {
      const share = value / 255;
      return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    };
    const luminance = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
    const parse = (color) => color.match(/[\d.]+/g).map(Number);
    const behind = (element) => {
      for (let at = element; at; at = at.parentElement) {
        const color = parse(getComputedStyle(at).backgroundColor);
        if (color.length === 3 || color[3] === 1) return color;
      }
      return [255, 255, 255];
    };
    const found = [];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      const words = walker.currentNode.data.trim();
      const element = walker.currentNode.parentElement;
      if (!words || element.closest('svg, script, .skip, noscript, .vh') || !element.checkVisibility()) continue;
      const style = getComputedStyle(element);
      const size = parseFloat(style.fontSize);
      if (size === 0) continue;
      const [light, dark] = [luminance(parse(style.color)), luminance(behind(element))].sort((a, b) => b - a);
      const contrast = (light + 0.05) / (dark + 0.05);
      if (contrast < (size >= 24 ? 3 : 4.5)) found.push(`${contrast.toFixed(2)}: ${words}`);
    }
    return found;
  },

  // Origins of every address on the page.
  origins() {
    const names = ['href', 'src', 'action', 'data-copy', 'data-plotly'];
    const elements = [...document.querySelectorAll(names.map((name) => `[${name}]`).join())];
    const addresses = elements.flatMap((element) => names.map((name) => element.getAttribute(name)));
    return [...new Set(addresses.filter((value) => value && !/^(#|data:)/.test(value)).map((value) => new URL(value, location.href).origin))];
  },

  // Controls and pictures that a screen reader has no word for.
  unnamed() {
    const named = (element) => (element.labels?.length ? element.labels[0].textContent : element.textContent).trim();
    return [...document.querySelectorAll('button, a[href], input, select, [role=img], [tabindex="0"]')]
      .filter((element) => element.checkVisibility() && !element.getAttribute('aria-label') && !named(element))
      .map((element) => element.outerHTML.slice(0, 120));
  },

  // Controls that a thumb misses.
  smallTargets() {
    return [...document.querySelectorAll('button, input, select, .tools a, .files a')]
      .filter((element) => element.checkVisibility() && !element.closest('table') && element.getBoundingClientRect().height < 38)
      .map((element) => `${element.getBoundingClientRect().height}: ${element.outerHTML.slice(0, 80)}`);
  },

  // Times of the day that stand in no element of a time; axes say their zone; what was sent, and code, are shown as they are.
  strayTimes() {
    const found = [];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      const element = walker.currentNode.parentElement;
      if (element.closest('script, noscript, time, [data-at], pre, code, blockquote.sent, .plot, #zone') || !element.checkVisibility()) continue;
      if (/\b\d{1,2}:\d\d\b|\bUTC\b(?![+−])/.test(walker.currentNode.data)) found.push(walker.currentNode.data.trim());
    }
    return found;
  },

  // How far content has moved since the page was opened, as browsers count it: 0 is nothing.
  shifted() {
    return new Promise((resolve) => {
      const sum = (entries) => entries.reduce((total, { value }) => total + value, 0);
      new PerformanceObserver((list) => resolve(sum(list.getEntries()))).observe({ type: 'layout-shift', buffered: true });
      setTimeout(() => resolve(0), 200);
    });
  },

  // Moment, form, text and title of every time.
  times() {
    return [...document.querySelectorAll('time')].map((element) => [element.dateTime, element.dataset.time ?? '', element.textContent, element.title]);
  },

  // By how many pixels the page is wider than its window.
  overflow() {
    return document.documentElement.scrollWidth - document.documentElement.clientWidth;
  },
})
