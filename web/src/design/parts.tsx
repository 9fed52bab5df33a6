import { Button, Modal, TextInput, Tooltip } from '@mantine/core'
import { useEffect, useRef, useState, useSyncExternalStore, type ReactNode } from 'react'
import { Problem } from '@/api/http'
import { t, tAny } from '@/words'
import { amount, slotAmount } from './amounts'
import { Icon } from './icons'
import { stateOf, wordOf } from './state'
import { exact, relative, useNow } from './time'

export function StateBadge({ status, result = '', plain = false }: { status: string; result?: string; plain?: boolean }) {
  const state = stateOf(status, result)
  return (
    <span className={`badge ${state}${plain ? ' plain' : ''}`}>
      <Icon name={`s-${state}`} size={12} />
      {tAny(`status.${wordOf(status, result)}`, status.toLowerCase())}
    </span>
  )
}

export function Ago({ at }: { at: string | null | undefined }) {
  useNow()
  if (!at) return <span className="dim">–</span>
  return (
    <time dateTime={at} title={exact(at)}>
      {relative(at, Date.now())}
    </time>
  )
}

export function KeyHint({ keys }: { keys: string }) {
  return (
    <>
      {keys.split(' ').map((k) => (
        <kbd key={k} className="kbd">
          {k}
        </kbd>
      ))}
    </>
  )
}

async function toClipboard(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text)
    return true
  } catch {
    return false
  }
}

/** A text that is copied by a click. */
export function Copy({ text, children, label }: { text: string; children?: ReactNode; label?: string }) {
  const [done, setDone] = useState(false)
  useEffect(() => {
    if (!done) return
    const id = setTimeout(() => setDone(false), 1500)
    return () => clearTimeout(id)
  }, [done])
  return (
    <button
      type="button"
      className="copy"
      title={text}
      aria-label={label ?? t('do.copy.what', { what: text })}
      onClick={(e) => {
        e.stopPropagation()
        void toClipboard(text).then(setDone)
      }}>
      {children}
      <Icon name={done ? 'check' : 'copy'} size={14} />
    </button>
  )
}

export function Id({ id }: { id: string }) {
  return (
    <Copy text={id}>
      <span className="mono">{id.length > 12 ? id.slice(0, 8) : id}</span>
    </Copy>
  )
}

/** The same thing on the command line. */
export function Cli({ line }: { line: string }) {
  return (
    <div className="cli">
      <code>{line}</code>
      <Copy text={line} label={t('do.copy.line')} />
    </div>
  )
}

export function PageHead({ title, sub, children }: { title: ReactNode; sub?: ReactNode; children?: ReactNode }) {
  return (
    <header className="pagehead">
      <div className="stack tight shrinks">
        <h1>{title}</h1>
        {sub && <div className="sub">{sub}</div>}
      </div>
      {children && <div className="acts">{children}</div>}
    </header>
  )
}

export function EmptyState({ title, text, action, cli }: { title: string; text?: string; action?: ReactNode; cli?: string }) {
  return (
    <div className="empty">
      <h2>{title}</h2>
      {text && <p>{text}</p>}
      {action}
      {cli && <Cli line={cli} />}
    </div>
  )
}

/** What happened, why, what to do next, and the number by which the request is found. */
export function ErrorState({ error, retry, what }: { error: unknown; retry?: () => void; what?: string }) {
  const p = error instanceof Problem ? error : null
  const said = p ? p.what : error instanceof Error ? error.message : String(error)
  return (
    <div className="fault" role="alert">
      <Icon name="warn" />
      <div className="stack tight grow">
        {what && <strong>{what}</strong>}
        <span>{said}</span>
        {p?.next && <span className="soft">{t('error.next', { next: p.next })}</span>}
        {p?.requestId && (
          <span className="small dim">
            {t('error.request')}{' '}
            <Copy text={p.requestId}>
              <code>{p.requestId.slice(0, 12)}</code>
            </Copy>
          </span>
        )}
      </div>
      {retry && (!p || p.passing) && <Button onClick={retry}>{t('do.retry')}</Button>}
    </div>
  )
}

export function Bone({ w = '100%', h = 14 }: { w?: number | string; h?: number | string }) {
  return <div className="bone" style={{ width: w, height: h }} />
}

/** How full a meter is. */
export function Fill({ part, more = false }: { part: number; more?: boolean }) {
  return <i className={more ? 'more' : ''} style={{ width: `${part * 100}%` }} />
}

/** A colour of the tokens. */
export function Swatch({ of }: { of: string }) {
  return <span className="swatch" style={{ background: `var(--b-${of})` }} />
}

/** The ground of a slider, filled as far as there is something free. */
export function FreeTrack({ part, children }: { part: number; children: ReactNode }) {
  return (
    <div className="grow freetrack" style={{ ['--free' as string]: `${part}%` }}>
      {children}
    </div>
  )
}

/** Lines of a layout that is being loaded. */
export function Skeleton({ lines = 4, h = 14 }: { lines?: number; h?: number }) {
  return (
    <div className="stack" role="status" aria-busy="true" aria-label={t('state.loading')}>
      {Array.from({ length: lines }, (_, i) => (
        <Bone key={i} h={h} w={`${92 - ((i * 17) % 40)}%`} />
      ))}
    </div>
  )
}

export function Panel({
  title,
  children,
  acts,
  body = true,
}: {
  title?: ReactNode
  children: ReactNode
  acts?: ReactNode
  body?: boolean
}) {
  return (
    <section className="panel">
      {title && (
        <header>
          <h2 className="grow">{title}</h2>
          {acts}
        </header>
      )}
      {body ? <div className="body">{children}</div> : children}
    </section>
  )
}

export function Facts({ of }: { of: [ReactNode, ReactNode][] }) {
  return <dl className="facts">{of.map(([k, v], i) => [<dt key={`k${i}`}>{k}</dt>, <dd key={`v${i}`}>{v ?? '–'}</dd>])}</dl>
}

/** How much of something is used. What has no limit shows its use alone. */
export function Meter({ slot, used, of, label, add }: { slot: string; used: unknown; of: unknown; label: ReactNode; add?: number }) {
  const u = amount(used as string)
  const all = amount(of as string)
  const bounded = u !== null && all !== null && Number.isFinite(all) && all > 0
  const part = bounded ? Math.min(1, u / all) : 0
  const more = bounded && add ? Math.min(1 - part, add / all) : 0
  const sum = bounded ? (u + (add ?? 0)) / all : 0
  return (
    <div className="stack tight">
      <div className="row small">
        <span className="soft grow cut">{label}</span>
        <span>
          {slotAmount(slot, used as string)}
          {bounded ? <span className="dim"> / {slotAmount(slot, of as string)}</span> : null}
        </span>
      </div>
      {bounded && (
        <div
          className={`meter ${sum > 1 ? 'full' : sum > 0.9 ? 'high' : ''}`}
          role="progressbar"
          aria-valuenow={Math.round(part * 100)}
          aria-label={typeof label === 'string' ? label : slot}>
          <Fill part={part + more} more={more > 0} />
          {more > 0 && <Fill part={part} />}
        </div>
      )}
    </div>
  )
}

/**
 * A question with consequences: it names what is lost, and asks for a name only where nothing can undo it. The button says what happens
 * while it happens, and a refusal is shown where the question stands.
 */
export function ConfirmAction({
  open,
  onClose,
  title,
  children,
  verb,
  doing,
  onDo,
  name,
  danger = true,
}: {
  open: boolean
  onClose: () => void
  title: string
  children?: ReactNode
  verb: string
  doing: string
  onDo: () => Promise<unknown>
  name?: string
  danger?: boolean
}) {
  const [typed, setTyped] = useState('')
  const [busy, setBusy] = useState(false)
  const [error, setError] = useState<unknown>(null)
  useEffect(() => {
    if (open) {
      setTyped('')
      setError(null)
    }
  }, [open])
  const ready = !name || typed === name
  const go = async () => {
    if (busy || !ready) return
    setBusy(true)
    setError(null)
    try {
      await onDo()
      onClose()
    } catch (err) {
      setError(err)
    } finally {
      setBusy(false)
    }
  }
  return (
    <Modal opened={open} onClose={onClose} title={title} withinPortal>
      <form
        className="stack"
        onSubmit={(e) => {
          e.preventDefault()
          void go()
        }}>
        <div className="soft text-m">{children}</div>
        {name && (
          <TextInput
            label={t('confirm.type', { name })}
            value={typed}
            onChange={(e) => setTyped(e.currentTarget.value)}
            autoComplete="off"
            data-autofocus
          />
        )}
        {error !== null && <ErrorState error={error} />}
        <div className="row to-end">
          <Button onClick={onClose}>{t('do.cancel')}</Button>
          <Button
            type="submit"
            variant="filled"
            {...(danger ? { color: 'red.8' } : {})}
            disabled={!ready}
            loading={busy}
            aria-label={busy ? doing : verb}
            data-autofocus={!name}>
            {verb}
          </Button>
        </div>
      </form>
    </Modal>
  )
}

// Toasts are for what is elsewhere now.
interface Toast {
  id: number
  text: string
  action?: { label: string; run: () => void }
  ms: number
}
let toasts: Toast[] = []
let nextToast = 1
const toastListeners = new Set<() => void>()
const tellToasts = () => {
  for (const l of toastListeners) l()
}

export function toast(text: string, action?: Toast['action'], ms = 6000): () => void {
  const id = nextToast++
  toasts = [...toasts, action ? { id, text, action, ms } : { id, text, ms }].slice(-4)
  tellToasts()
  return () => dropToast(id)
}

function dropToast(id: number) {
  toasts = toasts.filter((x) => x.id !== id)
  tellToasts()
}

function OneToast({ of }: { of: Toast }) {
  useEffect(() => {
    const id = setTimeout(() => dropToast(of.id), of.ms)
    return () => clearTimeout(id)
  }, [of])
  return (
    <div className="toast" role="status">
      <span className="grow">{of.text}</span>
      {of.action && (
        <Button
          size="compact-sm"
          onClick={() => {
            of.action?.run()
            dropToast(of.id)
          }}>
          {of.action.label}
        </Button>
      )}
      <button type="button" className="copy" aria-label={t('do.close')} onClick={() => dropToast(of.id)}>
        <Icon name="close" size={14} />
      </button>
    </div>
  )
}

export function Toasts() {
  const all = useSyncExternalStore(
    (l) => {
      toastListeners.add(l)
      return () => toastListeners.delete(l)
    },
    () => toasts,
  )
  return (
    <div className="toasts" aria-live="polite">
      {all.map((x) => (
        <OneToast key={x.id} of={x} />
      ))}
    </div>
  )
}

/** What cannot be done, with the reason; it stays in the order of the keyboard. */
export function Why({ reason, children }: { reason: string | null; children: ReactNode }) {
  if (!reason) return <>{children}</>
  return (
    <Tooltip label={reason} multiline maw={280}>
      <span tabIndex={0}>{children}</span>
    </Tooltip>
  )
}

/** The browser's title follows the page. */
export function useTitle(title: string) {
  useEffect(() => {
    document.title = title ? `${title} · Berth` : 'Berth'
  }, [title])
}

export function useLatest<T>(value: T) {
  const ref = useRef(value)
  ref.current = value
  return ref
}
