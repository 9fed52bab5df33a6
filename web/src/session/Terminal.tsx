import { FitAddon } from '@xterm/addon-fit'
import { Terminal as XTerm } from '@xterm/xterm'
import '@xterm/xterm/css/xterm.css'
import { useEffect, useRef, useState } from 'react'
import { Button } from '@mantine/core'
import { nonce } from '@/design/theme'
import { t } from '@/words'

const stdin = 0,
  stdout = 1,
  stderr = 2,
  resize = 3,
  exit = 4

// xterm makes style elements while it runs. The page's policy takes those with its nonce alone.
function withNonce<T>(work: () => T): T {
  const make = document.createElement.bind(document)
  document.createElement = ((name: string, o?: ElementCreationOptions) => {
    const el = make(name, o)
    if (name === 'style') el.nonce = nonce()
    return el
  }) as typeof document.createElement
  try {
    return work()
  } finally {
    document.createElement = make
  }
}

function colours(): Record<string, string> {
  const css = getComputedStyle(document.documentElement)
  const of = (n: string) => css.getPropertyValue(n).trim()
  return {
    background: of('--b-panel'),
    foreground: of('--b-ink'),
    cursor: of('--b-accent'),
    cursorAccent: of('--b-panel'),
    selectionBackground: of('--b-line-strong'),
    black: '#3a414b',
    red: of('--b-failed'),
    green: of('--b-running'),
    yellow: of('--b-waiting'),
    blue: of('--b-accent'),
    magenta: '#a05fc4',
    cyan: '#2a8fa3',
    white: of('--b-ink-2'),
    brightBlack: of('--b-ink-3'),
    brightRed: of('--b-failed'),
    brightGreen: of('--b-running'),
    brightYellow: of('--b-waiting'),
    brightBlue: of('--b-accent-ink'),
    brightMagenta: '#b478d6',
    brightCyan: '#3fa9be',
    brightWhite: of('--b-ink'),
  }
}

/** A shell of the session in the page. It ends when the page is left; what it started ends with it. */
export function Terminal({ session, active }: { session: string; active: boolean }) {
  const shown = useRef<XTerm | null>(null)
  // Whoever chooses the tab wants to type.
  useEffect(() => {
    if (active) shown.current?.focus()
  }, [active])
  const box = useRef<HTMLDivElement>(null)
  const [over, setOver] = useState('')
  const [turn, setTurn] = useState(0)
  useEffect(() => {
    const el = box.current
    if (!el) return
    setOver('')
    const fit = new FitAddon()
    const term = withNonce(() => {
      const x = new XTerm({
        fontFamily: getComputedStyle(document.documentElement).getPropertyValue('--b-mono'),
        fontSize: 13,
        cursorBlink: true,
        scrollback: 5000,
        theme: colours(),
      })
      x.loadAddon(fit)
      x.open(el)
      return x
    })
    shown.current = term
    fit.fit()
    term.focus()
    const cmd = JSON.stringify(['/bin/sh', '-c', 'if command -v bash >/dev/null 2>&1; then exec bash -l; else exec sh -l; fi'])
    const q = new URLSearchParams({ cmd, tty: 'true', rows: String(term.rows), cols: String(term.cols) })
    const ws = new WebSocket(
      `${location.protocol === 'https:' ? 'wss' : 'ws'}://${location.host}/func/stream/session/${encodeURIComponent(session)}/exec?${q}`,
    )
    ws.binaryType = 'arraybuffer'
    const bytes = new TextEncoder()
    const send = (channel: number, data: Uint8Array) => {
      if (ws.readyState !== WebSocket.OPEN) return
      for (let i = 0; i < Math.max(1, data.length); i += 65536) {
        const part = data.subarray(i, i + 65536)
        const frame = new Uint8Array(part.length + 1)
        frame[0] = channel
        frame.set(part, 1)
        ws.send(frame)
      }
    }
    let ended = false
    ws.onmessage = (e: MessageEvent<ArrayBuffer>) => {
      const d = new Uint8Array(e.data)
      if (d[0] === stdout || d[0] === stderr) term.write(d.subarray(1))
      else if (d[0] === exit) {
        ended = true
        const code = (JSON.parse(new TextDecoder().decode(d.subarray(1))) as { exitCode: number }).exitCode
        setOver(t('terminal.ended', { code }))
      }
    }
    ws.onclose = (e) => {
      if (!ended) setOver(e.reason ? t('terminal.closed.why', { why: e.reason }) : t('terminal.closed'))
    }
    const typed = term.onData((s) => send(stdin, bytes.encode(s)))
    const sized = term.onResize(({ rows, cols }) => send(resize, bytes.encode(JSON.stringify({ rows, cols }))))
    const watch = new ResizeObserver(() => {
      if (el.offsetWidth > 0) withNonce(() => fit.fit())
    })
    watch.observe(el)
    const scheme = new MutationObserver(() =>
      withNonce(() => {
        term.options.theme = colours()
      }),
    )
    scheme.observe(document.documentElement, { attributeFilter: ['data-mantine-color-scheme'] })
    return () => {
      ended = true
      shown.current = null
      watch.disconnect()
      scheme.disconnect()
      typed.dispose()
      sized.dispose()
      ws.close()
      term.dispose()
    }
  }, [session, turn])
  return (
    <div className="holder">
      <div className="screen pad-screen" ref={box} aria-label={t('tab.terminal')} />
      {over && (
        <div className="note at-foot">
          <span className="grow">{over}</span>
          <Button onClick={() => setTurn((n) => n + 1)}>{t('terminal.again')}</Button>
        </div>
      )}
    </div>
  )
}
export default Terminal
