// Addresses of the project whose page this is: `/p/research/…`, or without a prefix the default one's.
/** @param {string} path */
export const here = (path) => `${document.body.dataset.base ?? ''}${path}`;
