// The live page: follows /events, keeps the state of the keyspace, and draws it.
//
// A `state` replaces everything and a `change` alters it; both carry the object `keyspace` of /status. What arrives is only
// shown as text, never as markup. Sections are drawn in the order of page.html, at most once per animation frame.

import { ask, button, isCancellable, isKnown, isOpen, learn, mayAct, start } from './actions.js';
import { byId, element, plural, setText } from './dom.js';
import { explained, inWords } from './explain.js';
import { named, shown, start as startKeyspaces } from './keyspace.js';
import { resting } from './resting.js';
import { traffic } from './traffic.js';

const PHASES = ['Warming', 'Ready', 'Syncing', 'Switching', 'Complete'];
// Time in a phase, in milliseconds, after which a handoff counts as stuck. Only copying state may take long.
const STUCK = { Warming: 60_000 };
const STUCK_OTHERWISE = 5_000;
const MOVE_ROWS = 50;
// The kinds of trouble in which clients get no response.
const STOPS_CLIENTS = new Set(['unreachable', 'refuses', 'silent', 'held']);
// Each explanation costs the process a plan of all partitions. Beyond this number it is left to `segue explain`.
const MOST_EXPLAINED = 10_000;
const KEPT_CUTOVERS = 1000;
const KEPT_ENTRIES = 200;

const nothing = () => ({
  keyspace: null, lost: null, process: {}, shares: {}, names: [], owners: [], cutovers: [], log: [],
  arrived: 0, clock: 0, connected: false, refused: false,
});
const state = nothing();

// ---- the stream

let source;
let heard = performance.now();

function connect() {
  source?.close();
  source = new EventSource(`events${named('?')}`);
  source.addEventListener('state', (event) => { hear(); take(JSON.parse(event.data), true); });
  source.addEventListener('change', (event) => { hear(); take(JSON.parse(event.data), false); });
  source.addEventListener('beat', hear);
}

function hear() {
  heard = performance.now();
  if (!state.connected) {
    Object.assign(state, { connected: true, refused: false });
    draw();
    learn();
  }
}

// Begins to show the keyspace that is chosen now.
function showKeyspace() {
  Object.assign(state, nothing());
  heard = performance.now();
  selected = null;
  map.cursor = -1;
  for (const part of ['leader', 'revision', 'partitions', 'unowned']) setText(part, '–');
  connect();
  draw();
}

// The browser reconnects by itself, except after an error. It does not notice a dead network.
setInterval(() => {
  if (!source) return;
  if (state.connected && !isKnown()) learn();
  const silent = performance.now() - heard;
  if (silent > 3_000 && source.readyState !== EventSource.OPEN && state.connected) {
    state.connected = false;
    draw();
  }
  if ((silent > 2_000 && source.readyState === EventSource.CLOSED) || silent > 12_000) {
    state.refused = source.readyState === EventSource.CLOSED;
    heard = performance.now() - 3_000;
    state.connected = false;
    connect();
  }
}, 1_000);

function take(event, whole) {
  state.clock = Date.now() - event.now;
  state.process = event.process ?? state.process;
  if (event.keyspace) {
    const { keyspace, lost, shares, names } = event;
    Object.assign(state, { keyspace, lost, shares, names, arrived: performance.now() });
    // Sorted by name, so that each pod keeps its colour when the page is reloaded.
    keyspace.pods.forEach((pod) => colour(pod.name));
    if (whole) {
      Object.assign(state, { owners: event.owners, cutovers: event.cutovers, log: event.log });
    } else {
      for (const [partition, owner] of event.owners) state.owners[partition] = owner;
      state.cutovers = [...state.cutovers, ...event.cutovers].slice(-KEPT_CUTOVERS);
      state.log = [...state.log, ...event.log].slice(-KEPT_ENTRIES);
    }
  }
  draw();
}

// ---- drawing

let drawing = false;
function draw() {
  if (drawing) return;
  drawing = true;
  requestAnimationFrame(() => {
    drawing = false;
    drawVerdict();
    if (!state.keyspace) return;
    for (const part of [drawMoves, drawMap, drawPods, drawRouters, drawCutovers, drawDetail, drawLog]) part();
  });
}

// Makes `old` equal to `made`. The parts of it that are the same stay: a click begins and ends on the same button, although the
// ages beside it change.
function change(old, made) {
  const [before, after] = [[...old.childNodes], [...made.childNodes]];
  if (old.className !== made.className) old.className = made.className;
  if (before.length !== after.length) old.replaceChildren(...after);
  else before.forEach((part, index) => { if (!part.isEqualNode(after[index])) part.replaceWith(after[index]); });
}

// Gives `parent` one child for each item. What is the same stays, and with it the reader's focus.
function list(parent, items, key, make) {
  const known = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  items.forEach((item, index) => {
    const made = make(item);
    made.dataset.key = key(item);
    const old = known.get(made.dataset.key);
    const focused = old?.contains(document.activeElement) ? [...old.querySelectorAll('button')].indexOf(document.activeElement) : -1;
    if (old && !old.isEqualNode(made)) change(old, made);
    if (parent.children[index] !== (old ?? made)) parent.insertBefore(old ?? made, parent.children[index] ?? null);
    if (focused >= 0 && !old.contains(document.activeElement)) old.querySelectorAll('button')[focused]?.focus();
  });
  while (parent.children.length > items.length) parent.lastChild.remove();
}

const time = (at) => new Date(at + state.clock).toTimeString().slice(0, 8);

function span(milliseconds) {
  if (milliseconds < 1_000) return `${milliseconds > 0 && milliseconds < 10 ? milliseconds.toFixed(1) : Math.round(milliseconds)} ms`;
  if (milliseconds < 120_000) return `${(milliseconds / 1_000).toFixed(milliseconds < 10_000 ? 1 : 0)} s`;
  return `${Math.floor(milliseconds / 60_000)} min`;
}

const age = (handoff) => handoff.phase_age_ms + performance.now() - state.arrived;
const isStuck = (handoff) => age(handoff) > (STUCK[handoff.phase] ?? STUCK_OTHERWISE);
// How long a handoff has waited. The process says it as of its last event; what the store does not say counts from the phase's beginning.
const waited = (handoff, wait) => (wait.age_ms === null ? age(handoff) : wait.age_ms + performance.now() - state.arrived);
const inTenths = (milliseconds) => span(Math.floor(milliseconds / 100) * 100);
const oldestFirst = (handoffs) => [...handoffs].sort((a, b) => b.phase_age_ms - a.phase_age_ms || a.partition - b.partition);

function verdict() {
  const { keyspace, lost, connected } = state;
  if (!connected && state.refused) return ['bad', 'The process refuses the stream, perhaps because too many pages are open. Trying again …'];
  if (!connected && !keyspace) return ['waiting', 'Connecting …'];
  if (!connected) return ['bad', 'Not connected to this process. What follows is the last that it reported.'];
  if (lost) {
    if (!keyspace.revision) return ['waiting', `The store cannot be followed: ${lost}`];
    const since = keyspace.stale ? ` for ${span(Math.max(0, Date.now() - state.clock - keyspace.stale.since))}` : '';
    return ['bad', `Old: this process has not followed the store${since}, and shows what it saw last`];
  }
  if (refusal()) return ['bad', `The store refuses writes, and no move begins: ${refusal()}`];
  const { handoffs, unowned, partitions, leader } = keyspace;
  const stuck = oldestFirst(handoffs.filter(isStuck));
  if (stuck.length > 0) {
    const [first] = stuck;
    const others = stuck.length > 1 ? `, and ${stuck.length - 1} more` : '';
    const waits = first.waiting_for ? `waiting for ${first.waiting_for}` : 'waiting for the coordinator';
    return ['bad', `Stuck: partition ${first.partition} has been in ${first.phase} for ${span(age(first))}, ${waits}${others}`];
  }
  const troubles = keyspace.troubles ?? [];
  if (troubles.length > 0) {
    const more = troubles.length > 1 ? `, and ${plural(troubles.length - 1, 'more trouble')}` : '';
    return [troubles.some(({ kind }) => STOPS_CLIENTS.has(kind)) ? 'bad' : 'warn', `${troubles[0].what}${more}`];
  }
  if (!leader) return ['bad', 'No coordinator leads: nothing is planned until one does'];
  if (partitions === 0) return ['warn', 'The keyspace has no partitions yet'];
  const moves = handoffs.length > 0 ? `${plural(handoffs.length, 'handoff')} in flight` : '';
  if (unowned > 0) {
    return ['warn', `${plural(unowned, 'partition')} without a living owner${moves && `; ${moves}`}`];
  }
  const warnings = state.process.coordinator?.warnings ?? [];
  if (warnings.length > 0) {
    const more = warnings.length > 1 ? `, and ${plural(warnings.length - 1, 'more notice')}` : '';
    return ['warn', `${warnings[0]}${more}${moves && `; ${moves}`}`];
  }
  if (moves) return ['moving', moves];
  return ['settled', 'Settled: every partition has its owner and none moves'];
}

// Only a failed move warns of a partition in the log.
const failures = () => state.log.findLast(({ warn, partition }) => warn && partition !== null)?.n ?? 0;
const now = () => Date.now() - state.clock;
const rests = () => (state.connected && !state.lost ? resting(failures(), now(), draw) : []);

const drainInWords = ([pod, by]) => `pod ${pod} is drained, by ${by}`;

function drawVerdict() {
  const [tone, text] = verdict();
  byId('headline').dataset.state = tone;
  // What is shown below is not the present.
  document.body.toggleAttribute('data-old', Boolean(state.keyspace?.revision) && (!state.connected || Boolean(state.lost)));
  setText('verdict', text);
  const { keyspace, process } = state;
  if (!keyspace) return;
  document.title = `${{ settled: '✓', moving: '⇄', waiting: '…' }[tone] ?? '▲'} ${shown() || 'Segue'}`;
  setText('leader', keyspace.leader ?? 'none');
  setText('revision', String(keyspace.revision));
  setText('partitions', keyspace.partitions.toLocaleString('en'));
  setText('unowned', keyspace.unowned.toLocaleString('en'));
  byId('planner').hidden = !mayAct();
  byId('planner').dataset.action = keyspace.paused ? 'resume' : 'pause';
  setText('planner', keyspace.paused ? 'Resume moves …' : 'Pause moves …');
  const notices = [
    ...(state.lost && keyspace.revision ? [state.lost] : []),
    ...(keyspace.troubles ?? []).map(({ what, next_step: step }) => `${what}. Next step: ${step}`),
    ...(process.coordinator?.notices ?? []),
    ...(process.coordinator?.leads ? [] : keyspace.clocks ?? []),
    ...['router', 'coordinator', 'pod'].filter((role) => process[role]?.not_ready).map((role) => `${role}: ${process[role].not_ready}`),
    ...(keyspace.paused ? [`planned moves are paused, by ${keyspace.paused}`] : []),
    ...keyspace.drains.map(drainInWords),
    ...rests().map(({ what, why, until }) => `${what} for ${span(Math.ceil((until - now()) / 1_000) * 1_000)}: ${why}`),
    ...keyspace.malformed.map(([key, reason]) => `${key} cannot be read: ${reason}`),
    ...keyspace.leaseless.map((key) => `${key} has no lease and will not end by itself`),
    ...keyspace.repairs.map((command) => `if its process is gone: ${command}`),
  ];
  // The drain of a pod that is not registered has no row among the pods.
  const gone = keyspace.drains.filter(([pod]) => mayAct() && keyspace.pods.every(({ name }) => name !== pod));
  const ends = new Map(gone.map((drain) => [drainInWords(drain), drain[0]]));
  list(byId('notices'), notices, String, (notice) => element('li', {}, notice,
    ...(ends.has(notice) ? [' ', button('undrain', ends.get(notice), 'Undrain …', `End the drain of pod ${ends.get(notice)}`)] : [])));
}

const podName = (name) => [swatch(name), name];
function swatch(name) {
  const made = element('span', { class: 'swatch' });
  made.style.background = colour(name);
  return made;
}

function drawMoves() {
  const moving = oldestFirst(state.keyspace.handoffs);
  const rows = moving.slice(0, MOVE_ROWS).map((handoff) => ({ handoff, key: `${handoff.partition} ${handoff.to}` }));
  // A cutover is often too short to be read, so the last ones stay visible.
  const past = state.cutovers.slice(-12).reverse().filter((one, index, all) => all.findIndex((other) => other.partition === one.partition) === index);
  rows.push(...past.slice(0, Math.max(0, 6 - rows.length)).map((cutover) => ({ cutover, key: `past ${cutover.n}` })));
  setText('moves-count', moving.length > MOVE_ROWS ? `${moving.length}, the oldest ${MOVE_ROWS} of them here` : `${moving.length}`);
  list(byId('moves').querySelector('tbody'), rows, (row) => row.key, ({ handoff, cutover }) => {
    const { partition, from, to } = handoff ?? cutover;
    const [phase, when, waits] = handoff
      ? [handoff.phase, span(Math.floor(age(handoff) / 100) * 100), refusal() ? forTheStore() : handoff.waiting_for]
      : ['done', time(cutover.at), `paused ${span(cutover.pause_us / 1_000)} on ${cutover.router}, ${cutover.stashed} held`];
    const number = PHASES.indexOf(phase);
    const bar = PHASES.map((name, index) => element('i', { title: name, class: index === number ? 'now' : index < number || cutover ? 'done' : '' }));
    const stuck = handoff && isStuck(handoff);
    return element('tr', { class: cutover ? 'past' : stuck ? 'late-row' : '' },
      element('td', {}, partitionLink(partition)),
      element('td', {}, ...(from ? podName(from) : ['nobody']), ' → ', ...podName(to)),
      element('td', {}, element('span', { class: 'phases' }, ...bar), phase),
      element('td', { class: `number${stuck ? ' late' : ''}` }, when),
      element('td', stuck ? { class: 'late' } : {}, waits),
      ...(mayAct() ? [element('td', { class: 'acts' }, ...(handoff && isCancellable(handoff)
        ? [button('cancel', partition, 'Cancel …', `Cancel the move of partition ${partition}`)] : []))] : []));
  });
}

const partitionLink = (partition) =>
  element('button', { type: 'button', class: 'link', 'data-partition': partition }, String(partition));
document.addEventListener('click', (event) => {
  const partition = event.target.closest?.('[data-partition]')?.dataset.partition;
  if (partition !== undefined) show(Number(partition));
  const pod = event.target.closest?.('[data-pod]')?.dataset.pod;
  if (pod !== undefined) highlight(map.highlighted === pod ? null : pod);
});

// ---- colours: eight that the colour-blind tell apart (Okabe and Ito), then the same darker and lighter

const HUES = ['#0072b2', '#e69f00', '#009e73', '#cc79a7', '#56b4e9', '#b5a300', '#7a5ab5', '#8a6d55'];
const shades = new Map();
function colour(name) {
  if (!shades.has(name)) {
    const place = shades.size;
    const [red, green, blue] = [1, 3, 5].map((at) => parseInt(HUES[place % 8].slice(at, at + 2), 16));
    const [towards, by] = [[0, 0], [0, 0.45], [255, 0.55]][Math.floor(place / 8) % 3];
    shades.set(name, `rgb(${[red, green, blue].map((part) => Math.round(part + (towards - part) * by)).join(' ')})`);
  }
  return shades.get(name);
}
const parts = (text) => (text.startsWith('#') ? [1, 3, 5].map((at) => parseInt(text.slice(at, at + 2), 16)) : text.match(/\d+/g).map(Number));
const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const full = (hex) => (hex.length === 4 ? `#${[...hex.slice(1)].map((digit) => digit + digit).join('')}` : hex);

// ---- the map

const map = { canvas: byId('cells').firstChild, byOwner: false, highlighted: null, cursor: -1, order: [], size: 1, columns: 1 };
const pixels = document.createElement('canvas');

// Places the cells: as large as fits, in the order of their numbers or of their owners.
function layOut(count) {
  const width = byId('cells').clientWidth;
  const height = width < 600 ? 340 : 430;
  const fits = (size) => Math.ceil(count / Math.floor(width / size)) * size <= height;
  map.size = [28, 24, 20, 16, 13, 11, 9, 7, 6, 5, 4, 3].find(fits) ?? 2;
  map.columns = Math.min(Math.floor(width / map.size), Math.max(count, 1));
  map.order = Array.from({ length: count }, (_, partition) => partition);
  if (map.byOwner) {
    const rank = new Map([...state.names.keys()].sort((a, b) => (state.names[a] < state.names[b] ? -1 : 1)).map((number, place) => [number, place]));
    map.order.sort((a, b) => (rank.get(state.owners[a]) ?? -1) - (rank.get(state.owners[b]) ?? -1) || a - b);
  }
}

function drawMap() {
  const count = state.keyspace.partitions;
  map.canvas.hidden = count === 0;
  if (count === 0 || byId('cells').clientWidth === 0) return;
  layOut(count);
  const { canvas, size, columns, order } = map;
  const rows = Math.ceil(count / columns);
  const scale = devicePixelRatio || 1;
  const [width, height] = [columns * size, Math.max(rows, 1) * size];
  if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
    [canvas.width, canvas.height] = [Math.round(width * scale), Math.round(height * scale)];
    [canvas.style.width, canvas.style.height] = [`${width}px`, `${height}px`];
  }
  const context = canvas.getContext('2d');
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  const moving = new Map(state.keyspace.handoffs.map((handoff) => [handoff.partition, handoff]));
  const [unowned, card, contrast] = [style('--unowned'), full(style('--card')), full(style('--moving'))];
  const dim = (text) => `rgb(${parts(text).map((part, index) => Math.round(part * 0.15 + parts(card)[index] * 0.85)).join(' ')})`;
  const shade = (name) => (map.highlighted && map.highlighted !== name ? dim(colour(name)) : colour(name));
  const palette = state.names.map(shade);
  (size < 6 ? drawPixels : drawCells)(context, { rows, width, height, moving, palette, unowned, contrast });
  if (map.cursor >= 0 && map.cursor < count) {
    const at = order.indexOf(map.cursor);
    const grown = Math.max(size, 9);
    const [x, y] = [((at % columns) + 0.5) * size - grown / 2, (Math.floor(at / columns) + 0.5) * size - grown / 2];
    context.lineWidth = 4;
    context.strokeStyle = card;
    context.strokeRect(x, y, grown, grown);
    context.lineWidth = 2;
    context.strokeStyle = contrast;
    context.strokeRect(x, y, grown, grown);
  }
  drawPointed();
}

// Many cells: one pixel each, enlarged by the browser.
function drawPixels(context, { rows, width, height, moving, palette, unowned, contrast }) {
  [pixels.width, pixels.height] = [map.columns, rows];
  const image = new ImageData(map.columns, rows);
  const words = new Uint32Array(image.data.buffer);
  const word = (text) => { const [red, green, blue] = parts(text); return (0xff000000 | (blue << 16) | (green << 8) | red) >>> 0; };
  const words_of = palette.map(word);
  const [nobody, marked] = [word(full(unowned)), word(contrast)];
  map.order.forEach((partition, at) => { words[at] = moving.has(partition) ? marked : words_of[state.owners[partition]] ?? nobody; });
  pixels.getContext('2d').putImageData(image, 0, 0);
  context.imageSmoothingEnabled = false;
  context.drawImage(pixels, 0, 0, width, height);
}

function drawCells(context, { moving, palette, unowned, contrast }) {
  const { size, columns, order } = map;
  const side = size - (size > 12 ? 3 : size > 7 ? 2 : 1);
  order.forEach((partition, at) => {
    const [x, y] = [(at % columns) * size, Math.floor(at / columns) * size];
    const owner = palette[state.owners[partition]];
    if (owner) {
      context.fillStyle = owner;
      context.fillRect(x, y, side, side);
    } else {
      // Distinguished by its shape as well: a frame with a cross.
      context.strokeStyle = unowned;
      context.lineWidth = size > 12 ? 2 : 1;
      context.strokeRect(x + 1, y + 1, side - 2, side - 2);
      line(context, x + 1, y + 1, x + side - 1, y + side - 1);
      line(context, x + 1, y + side - 1, x + side - 1, y + 1);
    }
    const handoff = moving.get(partition);
    if (!handoff) return;
    context.fillStyle = colour(handoff.to);
    context.beginPath();
    context.moveTo(x + side, y);
    context.lineTo(x + side, y + side);
    context.lineTo(x, y + side);
    context.fill();
    context.strokeStyle = contrast;
    context.lineWidth = size > 12 ? 2 : 1;
    context.strokeRect(x + 0.5, y + 0.5, side - 1, side - 1);
    line(context, x + side, y, x, y + side);
  });
}

function line(context, fromX, fromY, toX, toY) {
  context.beginPath();
  context.moveTo(fromX, fromY);
  context.lineTo(toX, toY);
  context.stroke();
}

const ownerOf = (partition) => state.names[state.owners[partition]];
const handoffOf = (partition) => state.keyspace.handoffs.find((handoff) => handoff.partition === partition);
const pinOf = (partition) => state.keyspace.pins.find((pin) => pin.partition === partition);

function drawPointed() {
  if (map.cursor < 0 || map.cursor >= state.keyspace.partitions) return setText('pointed', 'Point at a cell, or use the arrow keys; click or Enter shows details.');
  const handoff = handoffOf(map.cursor);
  const moves = handoff ? `, moves to ${handoff.to} (${handoff.phase})` : '';
  setText('pointed', `Partition ${map.cursor}: ${ownerOf(map.cursor) ?? 'no living owner'}${moves}`);
}

function point(partition) {
  if (partition === map.cursor) return;
  map.cursor = partition;
  draw();
}

function partitionAt(event) {
  const [column, row] = [Math.floor(event.offsetX / map.size), Math.floor(event.offsetY / map.size)];
  return column < map.columns ? map.order[row * map.columns + column] ?? -1 : -1;
}
map.canvas.addEventListener('pointermove', (event) => point(partitionAt(event)));
map.canvas.addEventListener('pointerleave', () => point(selected ?? -1));
map.canvas.addEventListener('click', (event) => { if (partitionAt(event) >= 0) show(partitionAt(event)); });
map.canvas.addEventListener('keydown', (event) => {
  const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -map.columns, ArrowDown: map.columns, Home: -Infinity, End: Infinity }[event.key];
  if (step) {
    const at = Math.max(map.order.indexOf(map.cursor), 0);
    const to = map.cursor < 0 ? 0 : Math.min(Math.max(at + step, 0), map.order.length - 1);
    point(map.order[to] ?? -1);
  } else if (event.key === 'Enter' && map.cursor >= 0) {
    show(map.cursor);
  } else {
    return;
  }
  event.preventDefault();
});
byId('order').addEventListener('click', () => {
  map.byOwner = !map.byOwner;
  byId('order').setAttribute('aria-pressed', String(map.byOwner));
  draw();
});
byId('map').querySelector('form').addEventListener('submit', (event) => {
  event.preventDefault();
  const wanted = Number(byId('go').value);
  if (byId('go').value !== '' && wanted < state.keyspace?.partitions) show(wanted);
});

function highlight(pod) {
  map.highlighted = pod;
  draw();
}

// ---- pods and routers

function drawPods() {
  const { pods, handoffs } = state.keyspace;
  // Names of pods are free text: one may be that of a method which every object has.
  const shareOf = (pod) => (Object.hasOwn(state.shares, pod.name) ? state.shares[pod.name] : undefined);
  const most = Math.max(1, ...pods.map((pod) => Math.max(pod.partitions, shareOf(pod) ?? 0)));
  const { pods: rates, silent } = state.connected ? traffic(draw) : { pods: new Map(), silent: [] };
  setText('pods-count', `${pods.length}${silent.length > 0 ? `, without what goes through ${silent.join(' and ')}` : ''}`);
  list(byId('pods').querySelector('tbody'), pods, (pod) => pod.name, (pod) => {
    const share = shareOf(pod);
    const fill = element('i');
    fill.style.width = `${(pod.partitions / most) * 100}%`;
    fill.style.background = colour(pod.name);
    const bar = element('div', { class: 'bar' }, fill);
    if (share !== undefined) {
      const mark = element('b');
      mark.style.left = `${(share / most) * 100}%`;
      bar.append(mark);
    }
    const owned = element('td', { class: 'number' }, element('strong', { class: 'owned' }, String(pod.partitions)),
      element('span', { class: 'faint' }, share === undefined ? '' : ` / ${share.toFixed(share % 1 && share < 1_000 ? 1 : 0)}`));
    const [gets, gives] = [handoffs.filter(({ to }) => to === pod.name).length, handoffs.filter(({ from }) => from === pod.name).length];
    const moving = [gets && `+${gets}`, gives && `−${gives}`].filter(Boolean).join(' ');
    if (moving) owned.append(' ', element('span', { class: 'moving', title: 'arriving and leaving' }, moving));
    const tag = pod.status === 'Ready' ? [] : [element('span', { class: 'tag' }, pod.status)];
    const can = pod.capabilities.join(', ') || 'none';
    const name = element('button', {
      type: 'button', class: 'link', 'data-pod': pod.name, 'aria-pressed': String(map.highlighted === pod.name),
      title: `${pod.address}; capabilities: ${can}. Click: show only its partitions`,
    }, pod.name);
    const isDrained = state.keyspace.drains.some(([name]) => name === pod.name);
    const acts = isDrained ? button('undrain', pod.name, 'Undrain …', `End the drain of pod ${pod.name}`)
      : button('drain', pod.name, 'Drain …', `Drain pod ${pod.name}`);
    return element('tr', {}, element('td', {}, element('span', { class: 'name' }, swatch(pod.name), name), ...tag), element('td', {}, bar), owned,
      ...ratesOf(rates.get(pod.name)),
      ...(mayAct() ? [element('td', { class: 'acts' }, acts)] : []));
  });
}

const perSecond = (rate) => rate.toLocaleString('en', { maximumFractionDigits: rate < 10 ? 1 : 0 });

// The cells of a pod's requests and errors per second and of its p99.
function ratesOf(rate) {
  const cell = (content, kind = '') => element('td', { class: `number ${kind}`.trim() }, content);
  if (!rate) return [1, 2, 3].map(() => cell('–', 'faint'));
  const errors = rate.errors_per_s;
  return [cell(perSecond(rate.requests_per_s)), cell(perSecond(errors), errors > 0 ? 'late' : 'faint'),
    rate.p99_ms === null ? cell('–', 'faint') : cell(span(rate.p99_ms))];
}

function drawRouters() {
  const { routers, handoffs } = state.keyspace;
  const known = new Map([...(state.process.demo?.routers ?? []), state.process.router].filter(Boolean).map((router) => [router.name, router]));
  setText('routers-count', String(routers.length));
  list(byId('routers').querySelector('tbody'), routers, String, (router) => {
    const waiting = handoffs.filter(({ waiting_for: text }) => text.split(', ').some((one) => one.includes(`router ${router} `)));
    const late = waiting.some(isStuck);
    const its = (handoff) => handoff.waits.filter(({ kind, name }) => kind === 'router' && name === router);
    const longest = Math.max(0, ...waiting.flatMap((handoff) => its(handoff).map((wait) => waited(handoff, wait))));
    const text = waiting.length > 0 ? `${plural(waiting.length, 'waits', 'wait')} for it, ${inTenths(longest)}` : 'none waits for it';
    const { in_flight: inFlight, stashed } = known.get(router) ?? {};
    const number = (value) => element('td', { class: 'number' }, value?.toLocaleString('en') ?? element('span', { class: 'faint', title: 'Another process: see its own page' }, '–'));
    return element('tr', {}, element('td', {}, router), element('td', { class: late ? 'late' : waiting.length > 0 ? '' : 'faint' }, text), number(inFlight), number(stashed));
  });
}

// ---- cutovers

function quantile(sorted, share) {
  return sorted[Math.min(sorted.length - 1, Math.ceil(sorted.length * share) - 1)];
}

function drawCutovers() {
  const canvas = byId('cutovers').querySelector('canvas');
  const [width, height, scale] = [canvas.clientWidth, canvas.clientHeight, devicePixelRatio || 1];
  [canvas.width, canvas.height] = [width * scale, height * scale];
  const context = canvas.getContext('2d');
  context.setTransform(scale, 0, 0, scale, 0, 0);
  const { cutovers } = state;
  if (cutovers.length === 0) return;
  const sorted = cutovers.map((one) => one.pause_us / 1_000).sort((a, b) => a - b);
  const [middle, high] = [quantile(sorted, 0.5), quantile(sorted, 0.99)];
  const slowest = cutovers.reduce((a, b) => (b.pause_us > a.pause_us ? b : a));
  const strong = (text) => element('strong', {}, text);
  byId('pauses').replaceChildren(plural(cutovers.length, 'cutover'), ': p50 ', strong(span(middle)), ', p99 ', strong(span(high)), ', slowest ', strong(span(slowest.pause_us / 1_000)),
    ` (partition ${slowest.partition} on ${slowest.router}: ${slowest.reason})`);

  // Time to the right, the pause upwards on a logarithmic scale.
  const [left, bottom] = [46, height - 18];
  const end = Date.now() - state.clock;
  const begin = Math.min(end - 60_000, cutovers[0].at);
  // From the power of ten below the shortest pause, and at least two of them.
  const low = 10 ** Math.floor(Math.log10(Math.min(Math.max(sorted[0], 0.1), 10)));
  const top = Math.max(100 * low, sorted.at(-1) * 1.5);
  const x = (at) => left + ((at - begin) / (end - begin)) * (width - left - 6);
  const y = (pause) => bottom - (Math.log(Math.max(pause, low) / low) / Math.log(top / low)) * (bottom - 8);
  const [grid, faint, text] = ['--line', '--faint', '--text'].map(style);
  context.font = '11px system-ui, sans-serif';
  context.textBaseline = 'middle';
  context.textAlign = 'right';
  for (let pause = low; pause <= top; pause *= 10) {
    context.strokeStyle = grid;
    line(context, left, y(pause), width, y(pause));
    context.fillStyle = faint;
    context.fillText(pause < 1_000 ? `${Number(pause.toPrecision(1))} ms` : `${pause / 1_000} s`, left - 6, y(pause));
  }
  context.fillText('now', width - 6, height - 6);
  context.textAlign = 'left';
  context.fillText(`${span(end - begin)} ago`, left, height - 6);
  context.globalAlpha = 0.75;
  for (const one of cutovers) {
    context.fillStyle = colour(one.to);
    context.beginPath();
    context.arc(x(one.at), y(one.pause_us / 1_000), 3, 0, 2 * Math.PI);
    context.fill();
  }
  context.globalAlpha = 1;
  context.setLineDash([4, 3]);
  for (const [name, pause, below] of [['p50', middle, 8], ['p99', high, -7]]) {
    context.strokeStyle = context.fillStyle = text;
    line(context, left, y(pause), width, y(pause));
    context.fillText(name, left + 4, y(pause) + below);
  }
}

// ---- one partition in detail

let selected = null;

function show(partition) {
  selected = partition;
  point(partition);
  draw();
  requestAnimationFrame(() => byId('detail-title').focus());
}

function hide() {
  selected = null;
  draw();
  map.canvas.focus();
}
byId('close').addEventListener('click', hide);
document.addEventListener('keydown', (event) => { if (event.key === 'Escape' && selected !== null && !isOpen()) hide(); });

function facts(pairs) {
  return element('dl', {}, ...pairs.filter(([, value]) => value !== undefined && value !== null && value !== '')
    .flatMap(([name, value]) => [element('dt', {}, name), element('dd', {}, String(value))]));
}

// In which words the store refuses writes, if it does.
function refusal() {
  return state.process.keyspace?.store_refuses_writes;
}

function forTheStore() {
  return `the store, which refuses writes: ${refusal()}`;
}

function waitsInWords(handoff) {
  if (refusal()) return forTheStore();
  if (handoff.waits.length === 0) return handoff.waiting_for;
  return handoff.waits.map((wait) => wait.what + (wait.age_ms === null ? '' : `, for ${inTenths(waited(handoff, wait))}`)).join('; ');
}

// What the explanation of the selected partition depends on, as far as the page knows it.
function circumstances(handoff, pin) {
  const { leader, paused, drains, pods } = state.keyspace;
  const moves = handoff && [handoff.id, handoff.phase, handoff.waiting_for];
  const conditions = pods.map(({ name, status, suspected }) => [name, status, suspected]);
  return JSON.stringify([ownerOf(selected), moves, pin, leader, paused, drains, conditions, failures()]);
}

function drawDetail() {
  byId('detail').hidden = selected === null;
  if (selected === null) return;
  setText('detail-title', `Partition ${selected}`);
  const handoff = handoffOf(selected);
  const pin = pinOf(selected);
  drawPlacement(handoff, pin);
  const content = [facts([
    ['Owner', ownerOf(selected) ?? 'no living owner'],
    [pin?.until_pod_goes ? 'Moved' : 'Pinned', pin && `to ${pin.to ?? 'where it is'}, by ${pin.by}`],
    ['Moves to', handoff?.to],
    ['Phase', handoff && `${handoff.phase} for ${span(Math.floor(age(handoff) / 100) * 100)}`],
    ['Waits for', handoff && waitsInWords(handoff)],
    ['Why', handoff?.reason],
    ['Mode', handoff?.mode],
  ])];
  const isLarge = state.keyspace.partitions > MOST_EXPLAINED;
  const mayAsk = state.connected && !state.lost && !isLarge;
  const report = explained(selected, mayAsk ? circumstances(handoff, pin) : null, draw);
  if (report) content.push(...inWords(report, podName, time));
  if (isLarge) content.push(element('p', { class: 'faint' }, `Candidates and next steps: segue explain ${selected}`));
  const section = (title, items, none) => content.push(element('h3', {}, title),
    items.length > 0 ? element('ul', {}, ...items.map((text) => element('li', {}, text))) : element('p', { class: 'empty' }, none));
  const cutovers = state.cutovers.filter(({ partition }) => partition === selected).slice(-6).reverse();
  section('Last cutovers', cutovers.map((one) =>
    `${time(one.at)} ${one.from} → ${one.to} on ${one.router}: paused ${span(one.pause_us / 1_000)}, ${plural(one.stashed, 'request')} held`), 'None seen.');
  section('Events', state.log.filter(({ partition }) => partition === selected).slice(-6).reverse().map((entry) => `${time(entry.at)} ${entry.text}`), 'None seen.');
  const parent = byId('detail').querySelector('.scroll');
  const fresh = element('div', {}, ...content);
  if (!parent.firstChild?.isEqualNode(fresh)) parent.replaceChildren(fresh);
}

// The actions on the selected partition. Its fields are kept while the page is drawn anew.
function drawPlacement(handoff, pin) {
  const form = byId('placement');
  form.hidden = !mayAct();
  const target = byId('target');
  const pods = state.keyspace.pods.filter(({ name }) => name !== ownerOf(selected));
  const labels = pods.map(({ name, status }) => (status === 'Ready' ? name : `${name} (${status.toLowerCase()})`));
  if (target.dataset.shown !== JSON.stringify([selected, labels])) {
    const chosen = target.dataset.partition === String(selected) ? target.value : '';
    target.replaceChildren(...pods.map(({ name }, index) => element('option', { value: name }, labels[index])));
    const ready = pods.find(({ status }) => status === 'Ready') ?? pods[0];
    target.value = pods.some(({ name }) => name === chosen) ? chosen : ready?.name ?? '';
    Object.assign(target.dataset, { partition: selected, shown: JSON.stringify([selected, labels]) });
  }
  byId('move').disabled = pods.length === 0;
  const isPinned = pin && !pin.until_pod_goes;
  byId('pin').hidden = isPinned || !ownerOf(selected);
  byId('unpin').hidden = !pin;
  byId('cancel').hidden = !handoff || !isCancellable(handoff);
  for (const id of ['pin', 'unpin', 'cancel']) byId(id).dataset.subject = selected;
}
byId('placement').addEventListener('submit', (event) => {
  event.preventDefault();
  ask('move', selected, { to: byId('target').value, pin: byId('keep').checked });
});

function drawLog() {
  const entries = [...state.log].reverse();
  list(byId('log').querySelector('ol'), entries, (entry) => String(entry.n), (entry) =>
    element('li', entry.warn ? { class: 'warn' } : {}, element('time', {}, time(entry.at)), element('span', {}, `${entry.warn ? '▲ ' : ''}${entry.text}`)));
}

start(() => state, draw);
// Ages grow even if no event arrives.
setInterval(draw, 1_000);
addEventListener('resize', draw);
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', draw);
startKeyspaces(showKeyspace);
