// What goes through the routers to each pod: what `segue top` says of it.
//
// The process asks all routers for it, which takes a while, and those who ask meanwhile share the answer. A hidden page does not
// draw, and so does not ask.

import { named } from './keyspace.js';

// The longest wait for an answer, and the pause between an answer and the next question, in milliseconds.
const PATIENCE = 15_000;
const PAUSE = 1_000;
// The age from which on an answer is not shown any more.
const OLD = 15_000;

let known = { subject: null, pods: new Map(), silent: [], at: -Infinity };
let asking = false;
let next = 0;

// Returns the traffic of pods by name, and the routers that did not respond. `draw` is called when there is a new answer, and
// when it is time for the next question.
export function traffic(draw) {
  const subject = named('?');
  if (!asking && (performance.now() >= next || known.subject !== subject)) learn(subject, draw);
  const isKnown = known.subject === subject && performance.now() - known.at < OLD;
  return isKnown ? known : { pods: new Map(), silent: [] };
}

async function learn(subject, draw) {
  asking = true;
  try {
    const response = await fetch(`v1/top${subject}`, { cache: 'no-store', signal: AbortSignal.timeout(PATIENCE) });
    if (response.ok) {
      const { pods, routers } = await response.json();
      const silent = routers.filter(({ error }) => error).map(({ router }) => router);
      known = { subject, pods: new Map(pods.map((pod) => [pod.pod, pod])), silent, at: performance.now() };
    }
  } catch { /* The process is gone, which the headline says, or its store does not answer. */ }
  asking = false;
  next = performance.now() + PAUSE;
  draw();
  setTimeout(draw, PAUSE);
}
