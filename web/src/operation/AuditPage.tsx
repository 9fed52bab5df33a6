import { Button, Modal, TextInput } from '@mantine/core'
import { useDebouncedCallback } from '@mantine/hooks'
import { getRouteApi, useNavigate } from '@tanstack/react-router'
import { useEffect, useRef, useState } from 'react'
import type { AuditEntry } from '@/api/types'
import { DataTable, type Column } from '@/design/DataTable'
import { Icon } from '@/design/icons'
import { usePaged } from '@/design/paged'
import { Ago, Copy, EmptyState, ErrorState, Facts, PageHead, StateBadge, useTitle } from '@/design/parts'
import { Picker } from '@/design/Picker'
import { saveText } from '@/design/save'
import { exact } from '@/design/time'
import { isSuper, useMe } from '@/tenancy/me'
import { domainChoices } from '@/tenancy/queries'
import { t, type Word } from '@/words'
import { auditFilter, exportAudit, fromField, listAudit, toField, whoOf, type AuditSearch } from './audit'

const route = getRouteApi('/admin/audit')

export function AuditPage() {
  const search = route.useSearch()
  const go = useNavigate({ from: '/admin/audit' })
  useTitle(t('nav.audit'))
  const filter = auditFilter(search)
  const paged = usePaged<AuditEntry>(['operation', 'audit', filter], (l, o, s) => listAudit(filter, l, o, s), 10_000)
  const [open, setOpen] = useState<AuditEntry | null>(null)
  const set = (part: AuditSearch) => void go({ search: (old) => ({ ...old, ...part }), replace: true })
  const columns: Column<AuditEntry>[] = [
    { id: 'at', title: t('col.created'), width: '130px', cell: (e) => <Ago at={e.at} /> },
    {
      id: 'result',
      title: t('audit.result'),
      width: '110px',
      cell: (e) => <StateBadge status={e.result} plain />,
    },
    { id: 'action', title: t('audit.action'), width: 'minmax(160px, 1fr)', cell: (e) => <code>{e.action}</code> },
    { id: 'object', title: t('audit.object'), width: 'minmax(160px, 2fr)', cell: (e) => <span title={e.object}>{e.object || '–'}</span> },
    { id: 'who', title: t('audit.who'), width: 'minmax(160px, 1fr)', wide: true, cell: (e) => <Who of={e} /> },
    { id: 'address', title: t('audit.address'), width: '130px', wide: true, cell: (e) => <span className="soft">{e.address}</span> },
    {
      id: 'changes',
      title: t('audit.changes'),
      width: '90px',
      num: true,
      wide: true,
      cell: (e) => e.change_count || <span className="dim">–</span>,
    },
  ]
  const seen = [...new Set(Array.from({ length: Math.min(100, paged.total ?? 0) }, (_, i) => paged.row(i)?.action ?? ''))]
    .filter(Boolean)
    .sort()
  return (
    <div className="page">
      <PageHead title={t('nav.audit')} sub={<span>{t('audit.text')}</span>}>
        <Export filter={filter} none={!paged.total} />
      </PageHead>
      <Filters search={search} set={set} seen={seen} />
      <div className="panel">
        <DataTable
          label={t('nav.audit')}
          columns={columns}
          total={paged.total}
          row={paged.row}
          rowKey={(e) => String(e.id)}
          onRange={paged.onRange}
          error={paged.error}
          retry={paged.retry}
          onOpen={setOpen}
          empty={<EmptyState title={t('audit.none')} cli="berth audit list" />}
        />
      </div>
      <Modal opened={!!open} onClose={() => setOpen(null)} title={open?.action} size={640}>
        {open && (
          <div className="stack">
            <Facts
              of={[
                [t('audit.object'), open.object || '–'],
                [t('audit.who'), <Who key="w" of={open} whole />],
                ...(open.domain_name ? [[t('user.domain'), open.domain_name] as [string, string]] : []),
                ...(open.means ? [[t('audit.means'), open.means] as [string, string]] : []),
                ...(open.attempts ? [[t('audit.attempts'), open.attempts.toLocaleString()] as [string, string]] : []),
                [t('audit.address'), open.address],
                [t('col.created'), exact(open.at)],
                [
                  t('error.request'),
                  <Copy key="r" text={open.request_id}>
                    <code>{open.request_id}</code>
                  </Copy>,
                ],
                ...(open.reason ? [[t('col.why'), open.reason] as [string, string]] : []),
              ]}
            />
            {open.changes.map((c, i) => (
              <div key={i} className="panel pad">
                <code>{c.table}</code> <span className="dim small">{c.key}</span>
                <dl className="facts">
                  {columnsOf(c).map((k) => [
                    <dt key={k}>{k}</dt>,
                    <dd key={k + 'v'}>
                      <code>
                        {show(of(c.before)[k])} → {show(of(c.after)[k])}
                      </code>
                    </dd>,
                  ])}
                </dl>
              </div>
            ))}
          </div>
        )}
      </Modal>
    </div>
  )
}

/** Who did it; of a refused login the account that was tried. */
export function Who({ of: e, whole }: { of: AuditEntry; whole?: boolean }) {
  const { name, tried } = whoOf(e)
  if (tried) return <span className="soft">{name ? t('audit.tried', { who: name }) : t('audit.nobody')}</span>
  if (!name) return <span className="dim">–</span>
  return <span title={name}>{whole && e.role ? `${name} (${e.role})` : name}</span>
}

/** A field whose text goes to the address when the typing rests, and follows it when it changes by other means. */
function Find({
  label,
  value,
  onFind,
  list,
  wide,
}: {
  label: string
  value: string | undefined
  onFind: (text: string | undefined) => void
  list?: string
  wide?: boolean
}) {
  const [text, setText] = useState(value ?? '')
  const sent = useRef(value ?? '')
  const find = useDebouncedCallback((q: string) => {
    sent.current = q
    onFind(q || undefined)
  }, 250)
  useEffect(() => {
    if ((value ?? '') === sent.current) return
    sent.current = value ?? ''
    setText(value ?? '')
  }, [value])
  return (
    <TextInput
      type="search"
      size="xs"
      w={wide ? 240 : 170}
      placeholder={label}
      aria-label={label}
      value={text}
      {...(list ? { list } : {})}
      leftSection={<Icon name="search" size={14} />}
      onChange={(e) => {
        setText(e.currentTarget.value)
        find(e.currentTarget.value)
      }}
    />
  )
}

const spans = { hour: 3600_000, day: 86_400_000, week: 7 * 86_400_000 }

export function Filters({ search, set, seen }: { search: AuditSearch; set: (part: AuditSearch) => void; seen: string[] }) {
  const me = useMe()
  const some = Object.values(search).some(Boolean)
  const choose = (part: { [K in keyof AuditSearch]: string | undefined }) => set(part as AuditSearch)
  return (
    <div className="stack tight">
      <div className="row wrap">
        {['', 'done', 'denied'].map((r) => (
          <button
            key={r}
            type="button"
            className="chip"
            aria-pressed={(search.result ?? '') === r}
            onClick={() => choose({ result: r || undefined })}>
            {r ? t(`status.${r}` as Word) : t('filter.all')}
          </button>
        ))}
        <Find label={t('audit.find')} value={search.q} wide onFind={(q) => choose({ q })} />
        <Find label={t('audit.person')} value={search.who} onFind={(who) => choose({ who })} />
        <Find label={t('audit.action')} value={search.action} list="audit-actions" onFind={(action) => choose({ action })} />
        <datalist id="audit-actions">
          {seen.map((a) => (
            <option key={a} value={a} />
          ))}
        </datalist>
        {isSuper(me) && (
          <Picker
            size="xs"
            w={150}
            clearable
            aria-label={t('user.domain')}
            placeholder={t('audit.domains')}
            of={domainChoices()}
            value={search.domain ?? null}
            onChange={(v) => choose({ domain: v ?? undefined })}
          />
        )}
      </div>
      <div className="row wrap">
        {(Object.keys(spans) as (keyof typeof spans)[]).map((s) => (
          <button
            key={s}
            type="button"
            className="chip"
            onClick={() =>
              choose({ from: new Date(Math.floor((Date.now() - spans[s]) / 60_000) * 60_000).toISOString(), until: undefined })
            }>
            {t(`audit.last.${s}`)}
          </button>
        ))}
        <TextInput
          type="datetime-local"
          size="xs"
          aria-label={t('audit.from')}
          title={t('audit.from')}
          value={toField(search.from)}
          onChange={(e) => choose({ from: fromField(e.currentTarget.value) })}
        />
        <span className="dim">–</span>
        <TextInput
          type="datetime-local"
          size="xs"
          aria-label={t('audit.until')}
          title={t('audit.until')}
          value={toField(search.until)}
          onChange={(e) => choose({ until: fromField(e.currentTarget.value) })}
        />
        {some && (
          <Button
            size="compact-xs"
            onClick={() =>
              choose({
                q: undefined,
                result: undefined,
                action: undefined,
                who: undefined,
                domain: undefined,
                from: undefined,
                until: undefined,
              })
            }>
            {t('audit.clear')}
          </Button>
        )}
      </div>
    </div>
  )
}

/** Has the browser keep what is shown as JSON lines. */
export function Export({ filter, none }: { filter: string; none: boolean }) {
  const [lines, setLines] = useState<number | null>(null)
  const [error, setError] = useState<unknown>(null)
  const [cut, setCut] = useState<number | null>(null)
  const stop = useRef<AbortController | null>(null)
  useEffect(() => () => stop.current?.abort(), [])
  const save = async () => {
    stop.current = new AbortController()
    setError(null)
    setLines(0)
    try {
      const r = await exportAudit(filter, stop.current.signal, setLines)
      saveText('audit.jsonl', r.text, 'application/x-ndjson;charset=utf-8')
      setCut(r.whole ? null : r.lines)
    } catch (err) {
      if (!stop.current.signal.aborted) setError(err)
    }
    setLines(null)
  }
  return (
    <>
      {lines === null ? (
        <Button leftSection={<Icon name="download" />} disabled={none} onClick={() => void save()}>
          {t('audit.export')}
        </Button>
      ) : (
        <Button onClick={() => stop.current?.abort()}>{t('audit.exporting', { n: lines.toLocaleString() })}</Button>
      )}
      <Modal opened={error !== null || cut !== null} onClose={() => (setError(null), setCut(null))} title={t('audit.export')}>
        {error !== null ? <ErrorState error={error} retry={() => void save()} /> : t('audit.cut', { n: (cut ?? 0).toLocaleString() })}
      </Modal>
    </>
  )
}

const of = (row: unknown) => (row ?? {}) as Record<string, unknown>
const columnsOf = (c: AuditEntry['changes'][number]) => [...new Set([...Object.keys(of(c.before)), ...Object.keys(of(c.after))])]

function show(v: unknown): string {
  return v === undefined || v === null ? '–' : typeof v === 'string' ? v : JSON.stringify(v)
}
