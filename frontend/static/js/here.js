// Addresses in the project of the page: `/p/research/…`, without a prefix for the default project.
/** @param {string} path */
export const here = (path) => `${document.body.dataset.base ?? ''}${path}`;
