// Operators' actions: what each does in words, and the dialog that confirms it, sends it and shows the answer.
//
// Nothing is sent before its dialog is confirmed. An action is repeated under the same id until its answer is known, so that
// it takes effect once. The token is kept in the memory of the page only: a reload forgets it, and no other tab has it.

import { byId, element, plural, setText } from './dom.js';
import { named, shown } from './keyspace.js';

// How long the process waits for the coordinator's answer, and how long the page waits for the process.
const WAIT = '10s';
const TIMEOUT = 30_000;
// Phases in which a handoff can be cancelled.
const CANCELLABLE = ['Warming', 'Ready', 'Syncing'];
// What fetch takes as a header's value.
const SENDABLE = /^[\x21-\x7e]+$/;

// Whether this client may change something: `none`, `token` or `allowed`. Empty as long as it is not known.
let write = '';
let token = '';
let page;

export const isKnown = () => write !== '';
export const mayAct = () => isKnown() && write !== 'none';
export const isCancellable = (handoff) => CANCELLABLE.includes(handoff.phase);

export const isOpen = () => dialog.open;

// Returns the button that asks for an action on `subject`, a pod or a partition.
export const button = (action, subject, label, name) =>
  element('button', { type: 'button', class: 'act', 'data-action': action, 'data-subject': subject, 'aria-label': name, title: name }, label);

// `of` gives the present state; `draw` is called once it is known whether this client may act.
export function start(of, draw) {
  page = { of, draw };
}

// Asks the process whether this client may change something.
export async function learn() {
  try {
    const response = await fetch('v1/access', { cache: 'no-store' });
    // A process that is too busy may be asked again; an earlier version does not know the path.
    if (response.status >= 500) return;
    write = response.ok ? (await response.json()).write : 'none';
  } catch {
    return;
  }
  document.body.toggleAttribute('data-acts', mayAct());
  page.draw();
}

// ---- the actions

const segment = encodeURIComponent;
const ownerOf = (partition) => page.of().names[page.of().owners[partition]] ?? 'nobody';
const handoffOf = (partition) => page.of().keyspace.handoffs.find((handoff) => handoff.partition === Number(partition));

// Each returns the request, and what it will do in words.
const ACTIONS = {
  drain(pod) {
    const owned = page.of().keyspace.pods.find(({ name }) => name === pod)?.partitions ?? 0;
    return {
      title: `Drain pod ${pod}?`, verb: 'Drain', method: 'POST', path: `v1/pods/${segment(pod)}/drain`, body: {},
      effects: [
        `The pod gives up its ${plural(owned, 'partition')}: each moves to another pod by a handoff, and no request is lost.`,
        'It gets no more, in this life and in later ones, until somebody ends the drain.',
      ],
    };
  },
  undrain(pod) {
    return {
      title: `End the drain of pod ${pod}?`, verb: 'End the drain', method: 'DELETE', path: `v1/pods/${segment(pod)}/drain`, body: {},
      effects: ['The pod may be given partitions again, and the planner moves its share to it.'],
    };
  },
  move(partition, { to, pin }) {
    return {
      title: `Move partition ${partition} to ${to}?`, verb: 'Move', method: 'POST', path: 'v1/moves',
      body: { partition: Number(partition), to, pin },
      effects: [
        `Partition ${partition} is on ${ownerOf(partition)}. It moves by a handoff: its requests wait in the routers for the moment of the switch, and none is lost.`,
        pin ? `It belongs on ${to} from then on, until somebody unpins it.` : `It stays there until ${to} is gone or somebody unpins it.`,
      ],
    };
  },
  pin(partition) {
    // Refused if another pod would keep the partition by then.
    const to = handoffOf(partition)?.to ?? ownerOf(partition);
    return {
      title: `Pin partition ${partition} to ${to}?`, verb: 'Pin', method: 'PUT', path: `v1/partitions/${partition}/pin`, body: { to },
      effects: [
        `Partition ${partition} stays on ${to}, whatever the strategy says, until somebody unpins it.`,
        'While that pod is gone or drains, another pod has the partition.',
      ],
    };
  },
  unpin(partition) {
    return {
      title: `Unpin partition ${partition}?`, verb: 'Unpin', method: 'DELETE', path: `v1/partitions/${partition}/pin`, body: {},
      effects: ['The strategy places the partition again, so that it may move at once.'],
    };
  },
  cancel(partition) {
    const handoff = handoffOf(partition);
    return handoff && {
      title: `Cancel the move of partition ${partition}?`, verb: 'Cancel the move', method: 'POST', path: `v1/handoffs/${partition}/cancel`,
      body: { handoff: handoff.id },
      effects: [
        `Partition ${partition} stays on ${handoff.from ?? 'nobody'} and does not move to ${handoff.to}. Requests that wait for the move continue.`,
        'This is refused once the new owner may have been sent requests: the move then completes by itself.',
      ],
    };
  },
  pause() {
    return {
      title: 'Pause planned moves?', verb: 'Pause', method: 'POST', path: 'v1/planner', body: { paused: true },
      effects: [
        'No move for balance, no move by an operator and no drain begins until somebody resumes. Handoffs in flight complete.',
        'Partitions of dead owners still move, and so do those of a pod that shuts down.',
      ],
    };
  },
  resume() {
    return {
      title: 'Resume planned moves?', verb: 'Resume', method: 'POST', path: 'v1/planner', body: { paused: false },
      effects: [`They were paused by ${page.of().keyspace.paused}. What has been waiting begins at once.`],
    };
  },
};

// ---- the dialog

const dialog = byId('action');
let asked = null;

// Asks for the confirmation of an action. Does nothing if its subject is gone.
export function ask(action, subject, more) {
  const order = mayAct() && !dialog.open && ACTIONS[action](subject, more);
  if (!order) return;
  // Another keyspace may be chosen by the browser's history while the dialog is open.
  asked = { order, keyspace: named('&'), id: newId(), opener: document.activeElement, action, subject, busy: false };
  byId('action-confirm').disabled = false;
  setText('action-title', order.title);
  byId('action-effects').replaceChildren(...[...(shown() ? [`In keyspace ${shown()}.`] : []), ...order.effects].map((text) => element('p', {}, text)));
  byId('action-why').value = '';
  setText('action-confirm', order.verb);
  byId('action-inputs').hidden = byId('action-confirm').hidden = false;
  answer('', '');
  dialog.showModal();
  (needsToken() ? byId('action-token') : byId('action-why')).focus();
}

const needsToken = () => write === 'token' && token === '';

function newId() {
  const random = crypto.getRandomValues(new Uint32Array(2));
  return `page-${Date.now().toString(16)}-${[...random].map((word) => word.toString(16).padStart(8, '0')).join('')}`;
}

// Shows an answer. Its tone is `good`, `busy`, `bad` or empty.
function answer(tone, text) {
  byId('action-answer').dataset.tone = tone;
  setText('action-answer', text);
  const isDone = tone === 'good';
  byId('action-inputs').hidden = byId('action-confirm').hidden = isDone;
  byId('action-token').parentElement.hidden = !needsToken();
  byId('action-token').required = needsToken();
  setText('action-close', isDone ? 'Close' : 'Do nothing');
  if (isDone) byId('action-close').focus();
}

async function send() {
  const mine = asked;
  const { order, id, keyspace } = mine;
  token = byId('action-token').value.trim() || token;
  byId('action-token').value = '';
  if (token && !SENDABLE.test(token)) {
    token = '';
    answer('bad', 'The token may only contain visible ASCII characters.');
    return byId('action-token').focus();
  }
  mine.busy = byId('action-confirm').disabled = true;
  answer('busy', 'Waiting for the answer …');
  const headers = { 'content-type': 'application/json', ...(token && { authorization: `Bearer ${token}` }) };
  const body = JSON.stringify({ ...order.body, id, why: byId('action-why').value.trim(), who: byId('action-who').value.trim() });
  let status = 0;
  let said = {};
  try {
    const response = await fetch(`${order.path}?wait=${WAIT}${keyspace}`, { method: order.method, headers, body, signal: AbortSignal.timeout(TIMEOUT) });
    status = response.status;
    said = await response.json();
  } catch { /* The answer is lost, or was none of this endpoint. */ }
  mine.busy = false;
  // The dialog may have been closed meanwhile, and ask for another action.
  if (asked !== mine || !dialog.open) return;
  byId('action-confirm').disabled = false;
  judge(status, said);
}

function judge(status, { text, error }) {
  const again = 'Trying again is safe: it takes effect once.';
  const sentence = (words) => (words.endsWith('.') ? words : `${words}.`);
  if (status === 200 && text) return answer('good', `Done: ${sentence(text)}`);
  if (status === 202) return answer('busy', `Stored, and not carried out yet: ${sentence(error)} Confirm again to wait on.`);
  if (status === 401) {
    token = '';
    answer('bad', 'Refused: this is not the token of this endpoint.');
    return byId('action-token').focus();
  }
  if (status >= 400 && status < 500 && error) {
    // The answer belongs to its id, and another attempt is another operation.
    asked.id = newId();
    return answer('bad', `Refused: ${sentence(error)}`);
  }
  answer('bad', error ? `Not known to be done: ${sentence(error)} ${again}` : `The answer was lost. ${again}`);
}

dialog.querySelector('form').addEventListener('submit', (event) => {
  event.preventDefault();
  if (!asked.busy) send();
});
byId('action-close').addEventListener('click', () => { if (!asked.busy) dialog.close(); });
dialog.addEventListener('cancel', (event) => { if (asked.busy) event.preventDefault(); });
dialog.addEventListener('close', () => {
  // The button may have been drawn anew meanwhile.
  const { opener, subject } = asked;
  const inItsPlace = [...document.querySelectorAll('[data-action]')].find((one) => one.dataset.subject === String(subject) && one.offsetParent);
  (opener?.isConnected && opener.offsetParent ? opener : inItsPlace)?.focus();
});
document.addEventListener('click', (event) => {
  const { action, subject } = event.target.closest?.('[data-action]')?.dataset ?? {};
  if (action) ask(action, subject);
});
