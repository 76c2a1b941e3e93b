// What rests after failed moves: what `segue status` says of it.
//
// The process reads the history for it, so the page asks only when a move has failed and when a rest ends.

import { named } from './keyspace.js';

// The longest wait for an answer, and the shortest time between two questions, in milliseconds.
const PATIENCE = 10_000;
const PAUSE = 2_000;

let known = { subject: null, rests: [], at: -PAUSE };
let asking = false;

// Returns the back-offs that have not ended at `now`, by the clock of the process. `failures` changes when a move has failed;
// `draw` is called when the back-offs are there.
export function resting(failures, now, draw) {
  const subject = `${failures}${named('&')}`;
  const ended = known.rests.some(({ until }) => until <= now);
  if ((known.subject !== subject || ended) && !asking && performance.now() - known.at >= PAUSE) learn(subject, draw);
  return known.subject?.endsWith(named('&')) ? known.rests.filter(({ until }) => until > now) : [];
}

async function learn(subject, draw) {
  asking = true;
  let rests = null;
  try {
    const response = await fetch(`v1/history?limit=1${named('&')}`, { cache: 'no-store', signal: AbortSignal.timeout(PATIENCE) });
    rests = response.ok ? (await response.json()).resting : null;
  } catch { /* The process is gone, which the headline says, or its store does not answer. */ }
  asking = false;
  // Without an answer, the same question is asked again.
  known = { subject: rests && subject, rests: rests ?? [], at: performance.now() };
  draw();
}
