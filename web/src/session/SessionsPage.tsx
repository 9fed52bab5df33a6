import { Button, Select } from '@mantine/core'
import { getRouteApi, useNavigate } from '@tanstack/react-router'
import { useMemo, useState } from 'react'
import { slotLine } from '@/design/amounts'
import { useColumns } from '@/design/Columns'
import { CopyAsMenu } from '@/design/CopyAs'
import { DataTable, RowLink, type Column } from '@/design/DataTable'
import { Icon } from '@/design/icons'
import { usePaged } from '@/design/paged'
import { Ago, ConfirmAction, EmptyState, PageHead, StateBadge, useTitle } from '@/design/parts'
import { SearchField } from '@/design/SearchField'
import { isOver } from '@/design/state'
import { Views } from '@/design/Views'
import { isAdmin, useMe } from '@/tenancy/me'
import { t, tAny, useLanguage, type Word } from '@/words'
import { Peek } from './Peek'
import { filterOf, listSessions, useEnd, type Session, type SessionFilter } from './queries'

const route = getRouteApi('/sessions')
const statuses = ['live', 'waiting', 'running', 'ended', 'failed', 'all'] as const

function columns(owner: boolean): Column<Session>[] {
  return [
    {
      id: 'name',
      title: t('col.name'),
      width: 'minmax(180px, 2fr)',
      sort: 'name',
      cell: (s) => (
        <RowLink href={`/sessions/${s.id}`} title={s.name}>
          {s.name}
        </RowLink>
      ),
    },
    {
      id: 'status',
      title: t('col.status'),
      width: '146px',
      sort: 'status',
      cell: (s) => <StateBadge status={s.status} result={s.result} />,
      glow: (s) => s.status,
    },
    {
      id: 'why',
      title: t('col.why'),
      width: 'minmax(140px, 2fr)',
      wide: true,
      cell: (s) => (
        <span className="soft" title={s.why}>
          {s.status === 'RUNNING' ? '' : tAny(`ended.${s.why}`, s.why)}
        </span>
      ),
    },
    {
      id: 'image',
      title: t('col.image'),
      width: 'minmax(120px, 1fr)',
      sort: 'image',
      wide: true,
      cell: (s) => <span title={s.image}>{s.image.replace(/^berth\//, '')}</span>,
    },
    {
      id: 'slots',
      title: t('col.resources'),
      width: 'minmax(120px, 1fr)',
      wide: true,
      cell: (s) => slotLine(s.slots) || <span className="dim">–</span>,
    },
    ...(owner
      ? [
          {
            id: 'owner',
            title: t('col.owner'),
            width: 'minmax(130px, 1fr)',
            sort: 'user_email',
            wide: true,
            cell: (s: Session) => <span title={s.user_email}>{s.user_email}</span>,
          },
        ]
      : []),
    { id: 'type', title: t('col.type'), width: '100px', sort: 'type', wide: true, cell: (s) => t(`type.${s.type.toLowerCase()}` as Word) },
    {
      id: 'created',
      title: t('col.created'),
      width: '120px',
      sort: 'created_at',
      cell: (s) => <Ago at={isOver(s.status) ? (s.terminated_at ?? s.created_at) : s.created_at} />,
    },
  ]
}

export function SessionsPage() {
  const me = useMe()
  const search = route.useSearch()
  const go = useNavigate({ from: '/sessions' })
  useTitle(t('nav.sessions'))
  const filter: SessionFilter = {
    status: search.status ?? 'live',
    type: search.type,
    owner: search.owner,
    q: search.q,
    order: search.order,
  }
  const paged = usePaged<Session>(['session', 'list', filter], (limit, offset, signal) =>
    listSessions(filter, me.email, limit, offset, signal),
  )
  const [selected, setSelected] = useState<Set<string>>(new Set())
  const [names, setNames] = useState<Map<string, string>>(new Map())
  const [asking, setAsking] = useState(false)
  const end = useEnd()
  const lang = useLanguage()
  const admin = isAdmin(me)
  // The titles are in the language of the person.
  // eslint-disable-next-line react-hooks/exhaustive-deps
  const every = useMemo(() => columns(admin), [admin, lang])
  const { shown, chooser, hidden, hide } = useColumns('sessions', every)
  const peek = search.peek ?? null
  const look = (id: string | null) =>
    void go({
      search: ({ peek: _, ...old }) => (id ? { ...old, peek: id } : old),
      replace: true,
    })
  const set = (part: Partial<typeof search>) => {
    setSelected(new Set())
    void go({ search: (old) => ({ ...old, ...part }), replace: true })
  }
  const status = search.status ?? 'live'
  const filtered = !!(search.q || search.type || search.owner || search.status)
  const { peek: _, ...now } = search

  const pick = (keys: Set<string>) => {
    const known = new Map(names)
    for (let i = 0; i < (paged.total ?? 0) && i < 100_000; i++) {
      const r = paged.row(i)
      if (r && keys.has(r.id)) known.set(r.id, r.name)
    }
    setNames(known)
    setSelected(keys)
  }
  return (
    <div className="page">
      <PageHead title={t('nav.sessions')}>
        <CopyAsMenu
          cli={`berth session list${status === 'live' ? '' : ' --all'}`}
          api={{
            method: 'POST',
            path: '/admin/gql',
            body: {
              query: `query($filter: String, $order: String, $status: String) { compute_session_list(limit: 100, offset: 0, filter: $filter, order: $order, status: $status) { total_count items { id name status image } } }`,
              variables: { ...filterOf(filter, me.email), order: filter.order ?? '-created_at' },
            },
          }}
        />
        <Button variant="filled" leftSection={<Icon name="plus" />} onClick={() => void go({ to: '/sessions/new' })}>
          {t('session.new')}
        </Button>
      </PageHead>
      <div className="row wrap" role="group" aria-label={t('filter.label')}>
        {statuses.map((s) => (
          <button
            key={s}
            type="button"
            className="chip"
            aria-pressed={status === s}
            onClick={() => set({ status: s === 'live' ? undefined : s } as Partial<typeof search>)}>
            {t(`filter.${s}` as Word)}
          </button>
        ))}
        <span className="gap-8" />
        {isAdmin(me) && (
          <button
            type="button"
            className="chip"
            aria-pressed={search.owner === 'me'}
            onClick={() => set({ owner: search.owner === 'me' ? undefined : 'me' } as Partial<typeof search>)}>
            {t('filter.mine')}
          </button>
        )}
        {search.owner && search.owner !== 'me' && (
          <button type="button" className="chip" aria-pressed onClick={() => set({ owner: undefined } as Partial<typeof search>)}>
            {t('filter.owner', { who: search.owner })}
            <Icon name="close" size={10} />
          </button>
        )}
        <Select
          size="xs"
          w={130}
          aria-label={t('col.type')}
          placeholder={t('filter.type')}
          clearable
          value={search.type ?? null}
          onChange={(v) => set({ type: v ?? undefined } as Partial<typeof search>)}
          data={['interactive', 'batch', 'system'].map((v) => ({ value: v, label: t(`type.${v}` as Word) }))}
        />
        <Views
          table="sessions"
          now={{ search: now as Record<string, string>, hidden }}
          onOpen={(v) => {
            hide(v.hidden ?? [])
            void go({ search: v.search })
          }}
        />
        {chooser}
        <SearchField label={t('filter.name')} value={search.q} width={220} onFind={(q) => set({ q } as Partial<typeof search>)} />
      </div>
      <div className={peek ? 'peeking' : ''}>
        <div className="panel">
          <DataTable
            label={t('nav.sessions')}
            columns={shown}
            total={paged.total}
            row={paged.row}
            rowKey={(s) => s.id}
            onRange={paged.onRange}
            error={paged.error}
            retry={paged.retry}
            order={search.order ?? '-created_at'}
            onOrder={(order) => set({ order })}
            onOpen={(s) => void go({ to: '/sessions/$id', params: { id: s.id } })}
            peek={peek}
            onPeek={(s) => look(s?.id ?? null)}
            selected={selected}
            onSelect={pick}
            bulk={
              <>
                <span>{t('table.selected', { n: selected.size })}</span>
                <Button size="compact-sm" onClick={() => setSelected(new Set())}>
                  {t('do.clear')}
                </Button>
                <Button size="compact-sm" variant="filled" color="red.8" onClick={() => setAsking(true)}>
                  {t('session.end.n', { n: selected.size })}
                </Button>
              </>
            }
            empty={
              filtered ? (
                <EmptyState
                  title={t('sessions.nomatch')}
                  action={
                    <Button
                      onClick={() => {
                        void go({ search: {} })
                      }}>
                      {t('filter.clear')}
                    </Button>
                  }
                  cli="berth session list --all"
                />
              ) : (
                <EmptyState
                  title={t('sessions.none')}
                  text={t('home.none.text')}
                  cli="berth run python"
                  action={
                    <Button variant="filled" onClick={() => void go({ to: '/sessions/new' })}>
                      {t('session.new')}
                    </Button>
                  }
                />
              )
            }
          />
        </div>
        {peek && <Peek id={peek} onClose={() => look(null)} />}
      </div>
      <ConfirmAction
        open={asking}
        onClose={() => setAsking(false)}
        title={t('session.end.n', { n: selected.size })}
        verb={t('session.end.n', { n: selected.size })}
        doing={t('session.ending')}
        onDo={async () => {
          await end.mutateAsync([...selected])
          setSelected(new Set())
        }}>
        <p>{t('session.end.loses')}</p>
        <ul className="bullets over-8 scroll-s">
          {[...selected].slice(0, 50).map((id) => (
            <li key={id}>{names.get(id) ?? id}</li>
          ))}
        </ul>
        {selected.size > 50 && <p>{t('more.n', { n: selected.size - 50 })}</p>}
      </ConfirmAction>
    </div>
  )
}
