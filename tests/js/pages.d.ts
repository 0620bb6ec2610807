// What the scripts of pages know of each other and of the browser beyond its standard types.

/** What is on a page now; `stop` ends what listens to it. */
interface Mounted {
  main: HTMLElement;
  stop: AbortController;
  report: { redraw(): void } | null;
}

interface WindowEventMap {
  pagemounted: CustomEvent<Mounted>;
  themechange: Event;
}

interface Window {
  /** plotly.js, once its script has been loaded. */
  Plotly: PlotlyLibrary;
}

interface PlotlyLibrary {
  react(element: Element, data: object[], layout: object, config: object): Promise<void>;
}

/** An element that plotly has drawn a figure into. */
interface Figure extends HTMLElement {
  on?(name: 'plotly_click', run: (event: { points: { customdata: string[] }[] }) => void): void;
}
