// Requests to the API: the answer, or an error with the text of the server.
import { here } from './here.js';

/**
 * @param {string} method
 * @param {string} url
 * @param {unknown} [body]
 */
export async function ask(method, url, body) {
  let response;
  try {
    response = await fetch(here(url), {
      method, ...(body === undefined ? {} : { headers: { 'Content-Type': 'application/json' }, body: JSON.stringify(body) }),
    });
  } catch {
    throw new Error('The server does not answer; try again.');
  }
  if (response.status === 204) return null;
  // Who was signed out is sent to a page; a proxy answers with pages of its own.
  if (!response.headers.get('Content-Type')?.includes('json')) {
    throw new Error(response.redirected ? 'You are signed out: load the page again and sign in.' : 'The server cannot be reached at the moment; try again.');
  }
  const answer = await response.json();
  if (response.ok) return answer;
  throw Object.assign(new Error(answer.detail ?? 'The request failed; try again.'), { code: answer.code, faults: answer.faults ?? [] });
}
