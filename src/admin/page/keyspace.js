// The keyspace that the page shows, of a process that has several. It is kept in the URL, so that a link, a reload and the
// browser's history lead to the same one.

import { byId, element, setText } from './dom.js';

const PARAMETER = 'keyspace';
const RETRY = 1_000;

let names = [];
// Empty if there is only one.
let chosen = '';

// Returns the name of the keyspace if there are several, otherwise nothing.
export const shown = () => chosen;

// Returns what a query says of the keyspace, after `mark`.
export const named = (mark) => (chosen ? `${mark}${PARAMETER}=${encodeURIComponent(chosen)}` : '');

// Asks the process for its keyspaces. Calls `show` then, and whenever the reader chooses another one.
export async function start(show) {
  try {
    names = (await (await fetch('v1/keyspaces', { cache: 'no-store' })).json()).keyspaces;
  } catch {
    setTimeout(start, RETRY, show);
    return;
  }
  const select = byId('keyspace');
  select.replaceChildren(...names.map((name) => element('option', { value: name }, name)));
  select.parentElement.hidden = names.length < 2;
  select.addEventListener('change', () => {
    const url = new URL(location);
    url.searchParams.set(PARAMETER, select.value);
    history.pushState(null, '', url);
    choose(show);
  });
  addEventListener('popstate', () => choose(show));
  choose(show);
}

// Takes the keyspace from the URL; the first one, if that names none.
function choose(show) {
  const wanted = new URL(location).searchParams.get(PARAMETER);
  const name = names.includes(wanted) ? wanted : names[0];
  chosen = names.length > 1 ? name : '';
  byId('keyspace').value = name;
  setText('keyspace-name', name);
  byId('keyspace-name').parentElement.hidden = names.length > 1;
  show();
}
