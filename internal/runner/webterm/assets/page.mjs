// The web terminal's page. Over the WebSocket: bytes of the terminal as binary messages both ways; text messages are JSON,
// {"begin": true, "replay": bool, "window": bytes, "typed": bytes} first, {"typed": bytes so far} and {"beat": true} now and then,
// {"end": {code, signal}} or {"refused": "why"} last from the server, {"rows": n, "cols": n}, {"read": bytes so far} and {"drop": true} from here.
import { Terminal } from './xterm.mjs';
import { FitAddon } from './addon-fit.mjs';

// xterm.js writes style sheets of its own; the page's policy takes those with its nonce only.
const nonce = document.getElementById('page').nonce;
const create = document.createElement.bind(document);
document.createElement = (name, options) => {
  const element = create(name, options);
  if (String(name).toLowerCase() === 'style') element.nonce = nonce;
  return element;
};

// Bytes after which the server is told how far the screen is. Rarely: whatever is sent counts as somebody using the session.
const READ_EVERY = 512 << 10;
const INPUT_CHUNK = 32 << 10;
const PASTE = 4 << 10; // bytes: less than that waits for nobody's attention
const PASTE_SHOWN = 1_000; // ms after which people are told that a paste is under way
const SILENT = 70_000; // ms without a beat after which the connection is dead, whatever the browser says
const FIRST_DELAY = 300, LAST_DELAY = 10_000; // ms between attempts to connect

const term = new Terminal({
  cursorBlink: true, fontFamily: 'ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace', fontSize: 14, scrollback: 10_000,
  macOptionIsMeta: true, theme: { background: '#10141a', foreground: '#d8dee9' },
});
const fit = new FitAddon();
term.loadAddon(fit);
term.open(document.getElementById('terminal'));
window.term = term; // for whoever looks at the page with tools

const notice = document.getElementById('notice'), text = document.getElementById('text'), now = document.getElementById('now');
let socket = null, timer = 0, delay = FIRST_DELAY, replaying = false, ended = false, shown = 0, told = 0, heard = 0;

function say(message, button, action) {
  notice.hidden = !message;
  text.textContent = message;
  now.hidden = !button;
  now.textContent = button || '';
  now.onclick = action;
  resize();
}

function resize() {
  fit.fit();
}

// What is typed goes to the server no further than a window ahead of what the shell has taken; the rest of a long paste waits here.
// Both the bytes under way and those that wait are kept when the connection breaks: the next one says how many were taken.
const page = Array.from(crypto.getRandomValues(new Uint8Array(16)), (b) => b.toString(16).padStart(2, '0')).join('');
const paste = document.getElementById('paste'), pasted = document.getElementById('pasted');
const input = {
  open: false, window: Infinity, // of the connection
  taken: 0, under: 0, ahead: 0, // bytes taken by the shell, under way, and waiting here
  sent: [], waiting: [], // the bytes of the latter two
  since: 0, from: 0, // when and where the paste began that is under way
  stopped: 0, // what lies before that is not wanted any more
};

function begin(message) {
  input.window = message.window || Infinity;
  const known = typeof message.typed === 'number'; // the same shell, which has taken so much from here
  const lost = !known || message.typed < input.stopped ? forget() : 0;
  if (known) {
    taken(message.typed);
    input.waiting = input.sent.concat(input.waiting);
    input.ahead += input.under;
    input.sent = [];
    input.under = 0;
  } else {
    input.taken = 0;
  }
  input.open = true;
  pump();
  return known ? 0 : lost;
}

function forget() {
  const lost = input.under + input.ahead;
  input.sent = [];
  input.waiting = [];
  input.under = input.ahead = input.stopped = 0;
  progress();
  return lost;
}

function taken(upTo) {
  let n = Math.min(upTo - input.taken, input.under);
  input.taken = upTo;
  input.under -= n;
  let whole = 0;
  while (whole < input.sent.length && n >= input.sent[whole].length) n -= input.sent[whole++].length;
  input.sent.splice(0, whole);
  if (n > 0) input.sent[0] = input.sent[0].subarray(n);
  pump();
  progress();
}

function pump() {
  let whole = 0;
  while (input.open && whole < input.waiting.length && input.under < input.window) {
    const piece = input.waiting[whole].subarray(0, Math.min(INPUT_CHUNK, input.window - input.under));
    send(piece);
    input.sent.push(piece);
    input.under += piece.length;
    input.ahead -= piece.length;
    if (piece.length === input.waiting[whole].length) whole++;
    else input.waiting[whole] = input.waiting[whole].subarray(piece.length);
  }
  input.waiting.splice(0, whole);
}

function type(bytes) {
  if (!input.open || !bytes.length) return; // nobody knows where it would go by the time there is a connection
  input.waiting.push(bytes);
  input.ahead += bytes.length;
  pump();
}

function stop() {
  input.waiting = [];
  input.ahead = 0;
  input.stopped = input.taken + input.under;
  if (input.open) send(JSON.stringify({ drop: true }));
  progress();
}

function progress() {
  const left = input.under + input.ahead;
  if (left <= PASTE || input.taken + left <= input.stopped) {
    input.since = 0;
    paste.hidden = true;
    return;
  }
  const time = Date.now();
  if (!input.since) {
    input.since = time;
    input.from = input.taken;
  }
  if (time - input.since < PASTE_SHOWN) return;
  const done = input.taken - input.from;
  pasted.textContent = `Pasting: ${size(done)} of ${size(done + left)}`;
  paste.hidden = false;
}

function size(bytes) {
  return bytes < 1e6 ? `${Math.round(bytes / 1e3)} kB` : `${(bytes / 1e6).toFixed(1)} MB`;
}

document.getElementById('stop').onclick = () => {
  stop();
  term.focus();
};
setInterval(progress, 500);

function send(message) {
  if (socket && socket.readyState === WebSocket.OPEN) socket.send(message);
}

function connect() {
  clearTimeout(timer);
  timer = 0;
  ended = false;
  input.open = false;
  const url = new URL('./ws', location.href);
  url.protocol = url.protocol === 'http:' ? 'ws:' : 'wss:';
  url.search = location.search;
  url.searchParams.set('rows', term.rows);
  url.searchParams.set('cols', term.cols);
  url.searchParams.set('page', page);
  const mine = socket = new WebSocket(url);
  mine.binaryType = 'arraybuffer';
  heard = Date.now();
  mine.onmessage = (event) => {
    if (mine !== socket) return;
    heard = Date.now();
    if (typeof event.data === 'string') control(JSON.parse(event.data));
    else output(mine, new Uint8Array(event.data));
  };
  mine.onclose = () => {
    if (mine !== socket) return;
    socket = null;
    input.open = false;
    if (!ended) retry();
  };
}

function control(message) {
  if (message.begin) {
    delay = FIRST_DELAY;
    shown = told = 0;
    replaying = Boolean(message.replay);
    term.reset();
    const lost = begin(message);
    if (lost > PASTE) say(`The last ${size(lost)} of what was pasted did not arrive.`, 'Close', () => say(''));
    else say('');
    send(JSON.stringify({ rows: term.rows, cols: term.cols }));
    term.focus();
  } else if (message.typed) {
    taken(message.typed);
  } else if (message.end) {
    ended = true;
    input.open = false;
    forget();
    const how = message.end.signal ? `by signal ${message.end.signal}` : `with exit code ${message.end.code}`;
    say(`The shell has ended ${how}.`, 'Start a new one (Enter)', connect);
  } else if (message.refused) {
    ended = true;
    forget();
    say(message.refused, 'Try again', connect);
  }
}

function output(from, bytes) {
  const old = replaying;
  term.write(bytes, () => {
    if (from !== socket) return;
    if (old) replaying = false; // what was answered to old questions must not be typed again
    shown += bytes.length;
    if (shown - told >= READ_EVERY) {
      told = shown;
      send(JSON.stringify({ read: shown }));
    }
  });
}

async function retry() {
  const wait = delay * (0.75 + Math.random() / 2);
  delay = Math.min(delay * 2, LAST_DELAY);
  say('The connection to the session is broken. Trying again…', 'Now', connect);
  timer = setTimeout(connect, wait);
  try {
    const reply = await fetch('./', { method: 'HEAD', redirect: 'manual', cache: 'no-store' });
    if (timer && (reply.type === 'opaqueredirect' || [401, 403, 404, 410].includes(reply.status))) {
      say('This terminal cannot be reached any more: the session has ended, or the permission to see it.', 'Load the page again', () => location.reload());
    }
  } catch { /* the network is down: the next attempt shows whether it is back */ }
}

const encoder = new TextEncoder();
term.onData((data) => {
  if (ended && socket === null && data === '\r') connect();
  else if (!replaying) type(encoder.encode(data));
});
term.onBinary((data) => {
  if (!replaying) type(Uint8Array.from(data, (c) => c.charCodeAt(0)));
});
term.onResize(({ rows, cols }) => send(JSON.stringify({ rows, cols })));
new ResizeObserver(resize).observe(document.getElementById('terminal'));
const again = () => { if (timer && document.visibilityState === 'visible') connect(); };
addEventListener('online', again);
setInterval(() => {
  if (!socket || Date.now() - heard < SILENT) return;
  const dead = socket;
  socket = null;
  input.open = false;
  dead.close();
  retry();
}, 5_000);
document.addEventListener('visibilitychange', again);

resize();
connect();
