import { Modal, TextInput } from '@mantine/core'
import { useDebouncedCallback } from '@mantine/hooks'
import { getRouteApi, useNavigate } from '@tanstack/react-router'
import { useState } from 'react'
import { quoted } from '@/api/http'
import { DataTable, type Column } from '@/design/DataTable'
import { Icon } from '@/design/icons'
import { usePaged } from '@/design/paged'
import { Ago, Copy, EmptyState, Facts, PageHead, StateBadge, useTitle } from '@/design/parts'
import { exact } from '@/design/time'
import { t, type Word } from '@/words'
import { listAudit, type AuditEntry } from './queries'

const route = getRouteApi('/admin/audit')

export function auditFilter(q: string | undefined, result: string | undefined): string {
  const out: string[] = []
  if (q) {
    const like = quoted(`%${q.replace(/[%_]/g, '\\$&')}%`)
    out.push(`(action ilike ${like} | object ilike ${like} | email ilike ${like})`)
  }
  if (result) out.push(`result == ${quoted(result)}`)
  return out.join(' & ')
}

export function AuditPage() {
  const search = route.useSearch()
  const go = useNavigate({ from: '/admin/audit' })
  useTitle(t('nav.audit'))
  const filter = auditFilter(search.q, search.result)
  const paged = usePaged<AuditEntry>(['operation', 'audit', filter], (l, o, s) => listAudit(filter, l, o, s), 10_000)
  const [text, setText] = useState(search.q ?? '')
  const [open, setOpen] = useState<AuditEntry | null>(null)
  const set = (part: Partial<typeof search>) => void go({ search: (old) => ({ ...old, ...part }), replace: true })
  const find = useDebouncedCallback((q: string) => set({ q: q || undefined } as Partial<typeof search>), 250)
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
    { id: 'who', title: t('audit.who'), width: 'minmax(160px, 1fr)', wide: true, cell: (e) => e.email || <span className="dim">–</span> },
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
  return (
    <div className="page">
      <PageHead title={t('nav.audit')} sub={<span>{t('audit.text')}</span>} />
      <div className="row wrap">
        {['', 'done', 'denied', 'failed'].map((r) => (
          <button
            key={r}
            type="button"
            className="chip"
            aria-pressed={(search.result ?? '') === r}
            onClick={() => set({ result: r || undefined } as Partial<typeof search>)}>
            {r ? t(`status.${r}` as Word) : t('filter.all')}
          </button>
        ))}
        <TextInput
          type="search"
          size="xs"
          w={260}
          className="end"
          placeholder={t('audit.find')}
          aria-label={t('audit.find')}
          value={text}
          leftSection={<Icon name="search" size={14} />}
          onChange={(e) => {
            setText(e.currentTarget.value)
            find(e.currentTarget.value)
          }}
        />
      </div>
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
                [t('audit.who'), `${open.email} (${open.role})`],
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
              <div key={i} className="panel" style={{ padding: 12 }}>
                <code>{c.table}</code> <span className="dim small">{c.key}</span>
                <dl className="facts" style={{ marginTop: 6 }}>
                  {[...new Set([...Object.keys(c.before ?? {}), ...Object.keys(c.after ?? {})])].map((k) => [
                    <dt key={k}>{k}</dt>,
                    <dd key={k + 'v'}>
                      <code>
                        {show(c.before?.[k])} → {show(c.after?.[k])}
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

function show(v: unknown): string {
  return v === undefined || v === null ? '–' : typeof v === 'string' ? v : JSON.stringify(v)
}
