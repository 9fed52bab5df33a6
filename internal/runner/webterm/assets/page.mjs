// The web terminal's page. Over the WebSocket: bytes of the terminal as binary messages both ways; text messages are JSON,
// {"begin": true, "replay": bool} first, {"beat": true} now and then, {"end": {code, signal}} or {"refused": "why"} last from the server,
// {"rows": n, "cols": n} and {"read": bytes so far} from here.
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

function send(message) {
  if (socket && socket.readyState === WebSocket.OPEN) socket.send(message);
}

function connect() {
  clearTimeout(timer);
  timer = 0;
  ended = false;
  const url = new URL('./ws', location.href);
  url.protocol = url.protocol === 'http:' ? 'ws:' : 'wss:';
  url.search = location.search;
  url.searchParams.set('rows', term.rows);
  url.searchParams.set('cols', term.cols);
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
    if (!ended) retry();
  };
}

function control(message) {
  if (message.begin) {
    delay = FIRST_DELAY;
    shown = told = 0;
    replaying = Boolean(message.replay);
    term.reset();
    say('');
    send(JSON.stringify({ rows: term.rows, cols: term.cols }));
    term.focus();
  } else if (message.end) {
    ended = true;
    const how = message.end.signal ? `by signal ${message.end.signal}` : `with exit code ${message.end.code}`;
    say(`The shell has ended ${how}.`, 'Start a new one (Enter)', connect);
  } else if (message.refused) {
    ended = true;
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

function type(bytes) {
  for (let i = 0; i < bytes.length; i += INPUT_CHUNK) send(bytes.subarray(i, i + INPUT_CHUNK));
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
  dead.close();
  retry();
}, 5_000);
document.addEventListener('visibilitychange', again);

resize();
connect();
