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
  zonechange: Event;
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

/** The reader's zone; js/zone.js makes it before the page is painted. */
declare var zone: {
  /** A moment in the reader's zone; `form` is one of app/web/moments.py. */
  words(ms: number, form: string, options?: { inUtc?: boolean; bare?: boolean; now?: number }): string;
  /** How far it is from UTC at a moment. */
  offset(ms: number): string;
  /** A moment, moved so that its fields in UTC are those of the reader's zone. */
  moved(ms: number): number;
  name(): string;
  /** The value of a datetime-local input; empty for NaN. */
  local(ms: number): string;
  /** The moment that such a value means. */
  read(value: string): number;
};
