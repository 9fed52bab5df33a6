import { Checkbox } from '@mantine/core'
import { useVirtualizer } from '@tanstack/react-virtual'
import { useRouter } from '@tanstack/react-router'
import { memo, useEffect, useMemo, useRef, useState, type ReactNode } from 'react'
import { t } from '@/words'
import { Icon } from './icons'
import { usePaged, type Page } from './paged'
import { Bone, ErrorState, useLatest } from './parts'

export interface Column<T> {
  id: string
  title: string
  width: string
  cell: (row: T) => ReactNode
  num?: boolean
  /** The name by which the server orders. */
  sort?: string
  /** Not shown on narrow screens. */
  wide?: boolean
  /** A change of this text makes the cell glow. */
  glow?: (row: T) => string
}

interface Props<T> {
  label: string
  columns: Column<T>[]
  total: number | undefined
  row: (index: number) => T | undefined
  rowKey: (row: T) => string
  /** Which rows are in view, so that they can be fetched. */
  onRange?: (first: number, last: number) => void
  onOpen?: (row: T) => void
  order?: string
  onOrder?: (order: string) => void
  /** The key of the row that is looked at beside the table; Space opens and closes it, and the cursor takes it along. */
  peek?: string | null
  onPeek?: (row: T | null) => void
  selected?: Set<string>
  onSelect?: (keys: Set<string>) => void
  bulk?: ReactNode
  empty: ReactNode
  error?: unknown
  retry?: () => void
  foot?: ReactNode
}

const height = 36

/** The table of the product: sticky head, virtual rows, order by click, selection with x and shift, j and k and Enter. */
export function DataTable<T>(p: Props<T>) {
  const scroll = useRef<HTMLDivElement>(null)
  const narrow = useNarrow()
  const columns = useMemo(() => p.columns.filter((c) => !(narrow && c.wide)), [p.columns, narrow])
  const [cursor, setCursor] = useState(-1)
  const anchor = useRef(-1)
  const count = p.total ?? 0
  const v = useVirtualizer({
    count,
    getScrollElement: () => scroll.current,
    estimateSize: () => height,
    overscan: 12,
    initialRect: { width: 1000, height: 600 },
  })
  const items = v.getVirtualItems()
  const first = items[0]?.index ?? 0
  const last = items[items.length - 1]?.index ?? 0
  const { onRange } = p
  useEffect(() => onRange?.(first, last), [first, last, onRange])

  const select = (index: number, range: boolean) => {
    if (!p.onSelect || !p.selected) return
    const next = new Set(p.selected)
    const from = range && anchor.current >= 0 ? Math.min(anchor.current, index) : index
    const to = range && anchor.current >= 0 ? Math.max(anchor.current, index) : index
    const at = p.row(index)
    const on = at ? !next.has(p.rowKey(at)) || range : true
    for (let i = from; i <= to; i++) {
      const r = p.row(i)
      if (!r) continue
      if (on) next.add(p.rowKey(r))
      else next.delete(p.rowKey(r))
    }
    anchor.current = index
    p.onSelect(next)
  }
  const move = (to: number) => {
    const at = Math.max(0, Math.min(count - 1, to))
    setCursor(at)
    v.scrollToIndex(at)
    const r = p.row(at)
    if (p.peek && r) p.onPeek?.(r)
  }
  const onKey = (e: React.KeyboardEvent) => {
    if ((e.target as HTMLElement).closest('input:not([type="checkbox"]), textarea') || e.metaKey || e.ctrlKey || e.altKey) return
    const at = cursor >= 0 ? p.row(cursor) : undefined
    const did = () => e.preventDefault()
    if (e.key === 'j' || e.key === 'ArrowDown') {
      did()
      move(cursor + 1)
    } else if (e.key === 'k' || e.key === 'ArrowUp') {
      did()
      move(cursor - 1)
    } else if (e.key === 'Home') {
      did()
      move(0)
    } else if (e.key === 'End') {
      did()
      move(count - 1)
    } else if (e.key === 'x' && cursor >= 0) {
      did()
      select(cursor, false)
    } else if (e.key === 'X' && cursor >= 0) {
      did()
      select(cursor, true)
    } else if (e.key === 'Enter' && at && e.target === e.currentTarget) {
      did()
      p.onOpen?.(at)
    } else if (e.key === ' ' && at && p.onPeek && e.target === e.currentTarget) {
      did()
      p.onPeek(p.peek === p.rowKey(at) ? null : at)
    } else if (e.key === 'Escape' && p.peek) {
      did()
      p.onPeek?.(null)
    } else if (e.key === 'Escape' && p.selected?.size) {
      did()
      p.onSelect?.(new Set())
    }
  }
  // Rows are drawn anew only when something of theirs changes: what they call does not.
  const act = useRef<Acts>({ select: () => {}, open: () => {} })
  const latest = useLatest({
    select,
    open: (index: number) => {
      setCursor(index)
      const r = p.row(index)
      if (r) p.onOpen?.(r)
    },
  })
  if (!act.current.bound)
    act.current = { bound: true, select: (i, range) => latest.current.select(i, range), open: (i) => latest.current.open(i) }
  const template = (p.onSelect ? '40px ' : '') + columns.map((c) => c.width).join(' ')
  // Every row is a grid of its own: the table is at least as wide as the smallest columns together.
  const least = columns.reduce((n, c) => n + Number(/(\d+)px/.exec(c.width)?.[1] ?? 80), p.onSelect ? 40 : 0)
  const loaded = useMemo(() => {
    const out: T[] = []
    for (let i = first; i <= last && i < count; i++) {
      const r = p.row(i)
      if (r) out.push(r)
    }
    return out
  }, [first, last, count, p])
  const allOn = loaded.length > 0 && loaded.every((r) => p.selected?.has(p.rowKey(r)))

  if (p.error && p.total === undefined)
    return (
      <div className="pad-m">
        <ErrorState error={p.error} {...(p.retry ? { retry: p.retry } : {})} />
      </div>
    )
  if (p.total === 0) return <>{p.empty}</>
  return (
    <div className="dtable">
      <div className="scroll" ref={scroll} tabIndex={0} onKeyDown={onKey} role="region" aria-label={p.label}>
        <div role="table" aria-rowcount={count} aria-label={p.label} style={{ minWidth: least }}>
          <div className="tr head" role="row" style={{ gridTemplateColumns: template }}>
            {p.onSelect && (
              <div className="td" role="columnheader">
                <Checkbox
                  size="xs"
                  aria-label={t('table.all')}
                  checked={allOn}
                  indeterminate={!allOn && !!p.selected?.size}
                  onChange={() => p.onSelect?.(allOn || p.selected?.size ? new Set() : new Set(loaded.map(p.rowKey)))}
                />
              </div>
            )}
            {columns.map((c) => {
              const by = p.order?.replace(/^[-+]/, '') === c.sort
              const down = p.order?.startsWith('-')
              return (
                <div
                  key={c.id}
                  className={`td${c.num ? ' num' : ''}`}
                  role="columnheader"
                  aria-sort={by && c.sort ? (down ? 'descending' : 'ascending') : undefined}>
                  {c.sort && p.onOrder ? (
                    <button type="button" onClick={() => p.onOrder?.(by && !down ? `-${c.sort}` : c.sort!)}>
                      {c.title}
                      {by && <Icon name={down ? 'down' : 'up'} size={10} />}
                    </button>
                  ) : (
                    c.title
                  )}
                </div>
              )
            })}
          </div>
          {p.total === undefined ? (
            <div role="rowgroup" aria-busy="true" aria-label={t('state.loading')}>
              {Array.from({ length: 8 }, (_, i) => (
                <div key={i} className="tr" role="row" style={{ gridTemplateColumns: template }}>
                  {p.onSelect && <div className="td" role="cell" />}
                  {columns.map((c, j) => (
                    <div key={c.id} className="td" role="cell">
                      <Bone w={`${80 - (((i + j) * 13) % 40)}%`} h={12} />
                    </div>
                  ))}
                </div>
              ))}
            </div>
          ) : (
            <div className="rows" role="rowgroup" style={{ height: v.getTotalSize() }}>
              {items.map((item) => {
                const r = p.row(item.index)
                const key = r ? p.rowKey(r) : `row-${item.index}`
                return (
                  <Row
                    key={key}
                    row={r}
                    index={item.index}
                    start={item.start}
                    template={template}
                    columns={columns as Column<unknown>[]}
                    cur={item.index === cursor}
                    on={!!r && !!p.selected?.has(key)}
                    selects={!!p.onSelect}
                    opens={!!p.onOpen}
                    act={act.current}
                  />
                )
              })}
            </div>
          )}
        </div>
      </div>
      {(p.foot || p.total !== undefined) && (
        <div className="foot">
          <span>{t('table.total', { n: count.toLocaleString() })}</span>
          {p.foot}
        </div>
      )}
      {p.bulk && !!p.selected?.size && (
        <div className="bulk" role="toolbar" aria-label={t('table.bulk')}>
          {p.bulk}
        </div>
      )}
    </div>
  )
}

interface Acts {
  bound?: boolean
  select: (index: number, range: boolean) => void
  open: (index: number) => void
}

const Row = memo(function Row({
  row: r,
  index,
  start,
  template,
  columns,
  cur,
  on,
  selects,
  opens,
  act,
}: {
  row: unknown
  index: number
  start: number
  template: string
  columns: Column<unknown>[]
  cur: boolean
  on: boolean
  selects: boolean
  opens: boolean
  act: Acts
}) {
  return (
    <div
      role="row"
      aria-rowindex={index + 1}
      aria-selected={selects ? on : undefined}
      className={`tr${opens ? ' opens' : ''}${cur ? ' cur' : ''}${on ? ' sel' : ''}`}
      style={{ gridTemplateColumns: template, transform: `translateY(${start}px)` }}
      onClick={(e) => {
        if ((e.target as HTMLElement).closest('a,button,input,label') || r === undefined || window.getSelection()?.toString()) return
        if (e.shiftKey && selects) act.select(index, true)
        else if (opens) act.open(index)
      }}>
      {selects && (
        <div className="td" role="cell">
          {r !== undefined && (
            <input
              type="checkbox"
              className="pick"
              aria-label={t('table.one')}
              checked={on}
              onChange={(e) => act.select(index, (e.nativeEvent as MouseEvent).shiftKey)}
            />
          )}
        </div>
      )}
      {columns.map((c) => (
        <Cell key={c.id} num={!!c.num} text={r !== undefined && c.glow ? c.glow(r) : undefined}>
          {r !== undefined ? c.cell(r) : <Bone w="60%" h={12} />}
        </Cell>
      ))}
    </div>
  )
})

/** A link of a row. It is lighter than that of the router, of which a long table would have hundreds. */
export function RowLink({ href, children, title }: { href: string; children: ReactNode; title?: string }) {
  const router = useRouter()
  return (
    <a
      href={href}
      title={title}
      className="rowlink"
      onClick={(e) => {
        if (e.defaultPrevented || e.button !== 0 || e.metaKey || e.ctrlKey || e.shiftKey || e.altKey) return
        e.preventDefault()
        router.history.push(href)
      }}>
      {children}
    </a>
  )
}

function Cell({ children, num, text }: { children: ReactNode; num: boolean; text: string | undefined }) {
  const before = useRef(text)
  const [turn, setTurn] = useState(0)
  useEffect(() => {
    if (before.current !== undefined && text !== undefined && before.current !== text) setTurn((n) => n + 1)
    before.current = text
  }, [text])
  return (
    <div key={turn} role="cell" className={`td${num ? ' num' : ''}${turn ? ' glow' : ''}`}>
      {children}
    </div>
  )
}

export function useNarrow(): boolean {
  const query = '(max-width: 900px)'
  const [is, set] = useState(() => window.matchMedia(query).matches)
  useEffect(() => {
    const m = window.matchMedia(query)
    const on = () => set(m.matches)
    m.addEventListener('change', on)
    return () => m.removeEventListener('change', on)
  }, [])
  return is
}

/** A table of rows that are all here. */
export function Listing<T>(p: Omit<Props<T>, 'total' | 'row'> & { rows: T[] | undefined }) {
  const { rows, ...rest } = p
  return <DataTable {...rest} total={rows?.length} row={(i) => rows?.[i]} />
}

/** A table whose rows are read page by page, as they come into view. */
export function PagedTable<T>(
  p: Omit<Props<T>, 'total' | 'row' | 'onRange' | 'error' | 'retry'> & {
    of: readonly unknown[]
    load: (limit: number, offset: number, signal: AbortSignal) => Promise<Page<T>>
  },
) {
  const { of, load, ...rest } = p
  const paged = usePaged<T>(of, load)
  return <DataTable {...rest} total={paged.total} row={paged.row} onRange={paged.onRange} error={paged.error} retry={paged.retry} />
}
