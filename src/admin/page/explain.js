// The explanation of the partition whose details are shown: what `segue explain` says of it.
//
// The process answers from the store, and asks those that a handoff waits for, so the page asks only when what it knows of the partition has changed or the answer is old, and
// one question at a time.

import { element } from './dom.js';
import { named } from './keyspace.js';

// The shortest time between two questions, in milliseconds.
const PAUSE = 1_000;
// The age at which an answer is old, and the longest wait for one. An answer says more than `seen` has, such as the counts of
// partitions of other pods.
const OLD = 10_000;
const PATIENCE = 10_000;

// The subject of the last question, its answer, and when that came.
let known = { subject: '', seen: null, report: null, at: -PAUSE };
let asking = false;

// Returns the explanation of a partition as far as it is known. `seen` is what the page knows of the partition, or null while it
// cannot ask; `draw` is called when a new answer is there.
export function explained(partition, seen, draw) {
  const subject = `${partition}${named('&')}`;
  const age = performance.now() - known.at;
  const isDue = known.subject !== subject || known.seen !== seen || age >= OLD;
  if (seen !== null && isDue && !asking && age >= PAUSE) learn(partition, subject, seen, draw);
  return known.subject === subject ? known.report : null;
}

async function learn(partition, subject, seen, draw) {
  asking = true;
  let report = null;
  try {
    const signal = AbortSignal.timeout(PATIENCE);
    const response = await fetch(`v1/partitions/${partition}?ask=true${named('&')}`, { cache: 'no-store', signal });
    report = response.ok ? await response.json() : null;
  } catch { /* The process is gone, which the headline says, or its store does not answer. */ }
  asking = false;
  // Without an answer, the same question is asked again.
  known = { subject, seen: report && seen, report, at: performance.now() };
  draw();
}

// Most candidates that are shown.
const MOST = 12;
const RANK = { chosen: 0, owner: 1, no: 2 };

// Returns an explanation as elements. `podName` makes those of a pod's name, and `clock` shows a time of the process.
export function inWords(report, podName, clock) {
  const ranked = [...report.candidates].sort((a, b) => RANK[a.verdict] - RANK[b.verdict]);
  const candidates = ranked.slice(0, MOST).map(({ pod, verdict, reason }) =>
    element('li', {}, ...podName(pod), element('span', { class: 'faint' }, ` ${verdict}, ${reason}`)));
  if (ranked.length > MOST) candidates.push(element('li', { class: 'faint' }, `and ${ranked.length - MOST} more: segue explain ${report.partition}`));
  const steps = report.next_steps.length > 0 ? report.next_steps
    : [report.doubt ? `None known: ${report.doubt}.` : 'None: it is as it should be.'];
  const suffered = (report.troubles ?? []).map(({ what }) => element('li', {}, what));
  const says = (report.handoff?.awaited ?? []).filter((one) => one.says).map(({ kind, name, says }) =>
    element('li', {}, `${kind} ${name}: ${says}`));
  const rests = report.resting.map(({ what, why, until }) => element('li', {}, `${what} until ${clock(until)}: ${why}`));
  return [
    ...(rests.length > 0 ? [element('h3', {}, 'Rests after failed moves'), element('ul', { class: 'rests' }, ...rests)] : []),
    ...(suffered.length > 0 ? [element('h3', {}, 'What clients suffer'), element('ul', { class: 'troubles' }, ...suffered)] : []),
    ...(says.length > 0 ? [element('h3', {}, 'What participants say'), element('ul', { class: 'says' }, ...says)] : []),
    element('h3', {}, 'Next steps'), element('ul', {}, ...steps.map((step) => element('li', {}, step))),
    element('h3', {}, 'Candidates'), element('ul', { class: 'candidates' }, ...candidates),
  ];
}
