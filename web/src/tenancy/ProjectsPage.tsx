import { Button, Modal, NumberInput, Switch, Tabs, TextInput } from '@mantine/core'
import { useQuery, useQueryClient } from '@tanstack/react-query'
import { getRouteApi, useNavigate } from '@tanstack/react-router'
import { useState, type FormEvent } from 'react'
import { parsed } from '@/api/http'
import { amount, isMemory, order, slotName } from '@/design/amounts'
import { DataTable, Listing, PagedTable, type Column } from '@/design/DataTable'
import { Icon } from '@/design/icons'
import { usePaged } from '@/design/paged'
import { Ago, EmptyState, ErrorState, PageHead, Panel, Skeleton, StateBadge, useTitle } from '@/design/parts'
import { Picker } from '@/design/Picker'
import { holds, SearchField } from '@/design/SearchField'
import { slotsQuery } from '@/resource/queries'
import { t, type Word } from '@/words'
import { isSuper, useMe } from './me'
import {
  createDomain,
  createProject,
  domainChoices,
  listDomains,
  listProjects,
  membersQuery,
  modifyDomain,
  modifyProject,
  projectFilter,
  userChoices,
  type Domain,
  type Member,
  type Project,
} from './queries'

const GiB = 2 ** 30
const route = getRouteApi('/admin/projects')
const statuses = ['active', 'inactive', 'all'] as const

export function ProjectsPage() {
  const me = useMe()
  const search = route.useSearch()
  const tab = search.tab ?? 'projects'
  const go = useNavigate({ from: '/admin/projects' })
  useTitle(t('nav.projects'))
  const filter = projectFilter(search.q, search.status)
  const order = search.order ?? 'name'
  const paged = usePaged<Project>(['tenancy', 'projects', filter, order], (l, o, s) => listProjects(filter, order, l, o, s))
  const set = (part: Partial<typeof search>) => void go({ search: (old) => ({ ...old, ...part }), replace: true })
  const [open, setOpen] = useState<Project | 'new' | null>(null)
  const [domain, setDomain] = useState<Domain | 'new' | null>(null)
  const columns: Column<Project>[] = [
    { id: 'name', title: t('col.name'), width: 'minmax(160px, 1fr)', sort: 'name', cell: (p) => <strong className="cut">{p.name}</strong> },
    {
      id: 'status',
      title: t('col.status'),
      width: '120px',
      sort: 'is_active',
      cell: (p) => <StateBadge status={p.is_active ? 'active' : 'inactive'} />,
    },
    {
      id: 'desc',
      title: t('project.desc'),
      width: 'minmax(160px, 2fr)',
      wide: true,
      cell: (p) => p.description || <span className="dim">–</span>,
    },
    { id: 'domain', title: t('user.domain'), width: '120px', wide: true, sort: 'domain_name', cell: (p) => p.domain_name },
    {
      id: 'groups',
      title: t('cluster.groups'),
      width: 'minmax(120px, 1fr)',
      wide: true,
      cell: (p) => p.scaling_groups.join(', ') || <span className="dim">–</span>,
    },
    { id: 'since', title: t('user.since'), width: '120px', wide: true, sort: 'created_at', cell: (p) => <Ago at={p.created_at} /> },
  ]
  const domainColumns: Column<Domain>[] = [
    { id: 'name', title: t('col.name'), width: 'minmax(160px, 1fr)', cell: (d) => <strong className="cut">{d.name}</strong> },
    { id: 'status', title: t('col.status'), width: '120px', cell: (d) => <StateBadge status={d.is_active ? 'active' : 'inactive'} /> },
    {
      id: 'desc',
      title: t('project.desc'),
      width: 'minmax(160px, 2fr)',
      wide: true,
      cell: (d) => d.description || <span className="dim">–</span>,
    },
    { id: 'since', title: t('user.since'), width: '120px', wide: true, cell: (d) => <Ago at={d.created_at} /> },
  ]
  return (
    <div className="page">
      <PageHead title={tab === 'domains' ? t('project.domains') : t('nav.projects')}>
        <Button variant="filled" leftSection={<Icon name="plus" />} onClick={() => (tab === 'domains' ? setDomain('new') : setOpen('new'))}>
          {tab === 'domains' ? t('project.newdomain') : t('project.new')}
        </Button>
      </PageHead>
      {isSuper(me) && (
        <Tabs value={tab} onChange={(v) => void go({ search: v === 'domains' ? { tab: v } : {}, replace: true })}>
          <Tabs.List>
            <Tabs.Tab value="projects">{t('nav.projects')}</Tabs.Tab>
            <Tabs.Tab value="domains">{t('project.domains')}</Tabs.Tab>
          </Tabs.List>
        </Tabs>
      )}
      <div className="row wrap">
        {tab !== 'domains' &&
          statuses.map((s) => (
            <button
              key={s}
              type="button"
              className="chip"
              aria-pressed={(search.status ?? 'active') === s}
              onClick={() => set({ status: s === 'active' ? undefined : s } as Partial<typeof search>)}>
              {s === 'all' ? t('filter.all') : t(`status.${s}` as Word)}
            </button>
          ))}
        <SearchField
          key={tab}
          label={t(tab === 'domains' ? 'domain.find' : 'project.find')}
          value={search.q}
          onFind={(q) => set({ q } as Partial<typeof search>)}
        />
      </div>
      <div className="panel">
        {tab === 'domains' ? (
          <PagedTable
            of={['tenancy', 'domains', 'page', search.q ?? '']}
            load={(l, o, s) => listDomains(search.q, l, o, s)}
            label={t('project.domains')}
            columns={domainColumns}
            rowKey={(d) => d.name}
            onOpen={setDomain}
            empty={<EmptyState title={search.q ? t('find.none') : t('project.none')} cli="berth domain create NAME" />}
          />
        ) : (
          <DataTable
            label={t('nav.projects')}
            columns={columns}
            total={paged.total}
            row={paged.row}
            rowKey={(p) => p.id}
            onRange={paged.onRange}
            onOpen={setOpen}
            order={order}
            onOrder={(o) => set({ order: o })}
            error={paged.error}
            retry={paged.retry}
            empty={
              search.q || search.status ? (
                <EmptyState
                  title={t('find.none')}
                  cli="berth project list"
                  action={<Button onClick={() => void go({ search: {} })}>{t('filter.clear')}</Button>}
                />
              ) : (
                <EmptyState title={t('project.none')} text={t('project.none.text')} cli="berth project create NAME" />
              )
            }
          />
        )}
      </div>
      <Modal opened={open !== null} onClose={() => setOpen(null)} title={open === 'new' ? t('project.new') : (open?.name ?? '')} size={560}>
        {open !== null && <ProjectForm of={open === 'new' ? null : open} onDone={() => setOpen(null)} />}
      </Modal>
      <Modal
        opened={domain !== null}
        onClose={() => setDomain(null)}
        title={domain === 'new' ? t('project.newdomain') : (domain?.name ?? '')}>
        {domain !== null && <DomainForm of={domain === 'new' ? null : domain} onDone={() => setDomain(null)} />}
      </Modal>
    </div>
  )
}

function ProjectForm({ of: p, onDone }: { of: Project | null; onDone: () => void }) {
  const me = useMe()
  const client = useQueryClient()
  const [name, setName] = useState(p?.name ?? '')
  const [desc, setDesc] = useState(p?.description ?? '')
  const [domain, setDomain] = useState(p?.domain_name ?? me.domain_name)
  const [active, setActive] = useState(p?.is_active ?? true)
  const [busy, setBusy] = useState(false)
  const [error, setError] = useState<unknown>(null)
  const submit = (e: FormEvent) => {
    e.preventDefault()
    setBusy(true)
    setError(null)
    const work = p
      ? modifyProject(p.id, { name, description: desc, is_active: active })
      : createProject(name.trim(), { description: desc, domain_name: domain })
    work
      .then(() => client.invalidateQueries({ queryKey: ['tenancy'] }))
      .then(onDone, setError)
      .finally(() => setBusy(false))
  }
  return (
    <div className="stack">
      <form className="stack" onSubmit={submit}>
        <TextInput
          label={t('col.name')}
          value={name}
          onChange={(e) => setName(e.currentTarget.value)}
          required
          data-autofocus
          maxLength={64}
        />
        <TextInput label={t('project.desc')} value={desc} onChange={(e) => setDesc(e.currentTarget.value)} />
        {!p && isSuper(me) && (
          <Picker label={t('user.domain')} of={domainChoices(true)} value={domain} onChange={(v) => setDomain(v ?? domain)} />
        )}
        {p && (
          <Switch
            label={t('status.active')}
            checked={active}
            onChange={(e) => setActive(e.currentTarget.checked)}
            description={t('project.inactive.text')}
          />
        )}
        {error !== null && <ErrorState error={error} />}
        <div className="row to-end">
          <Button onClick={onDone}>{t('do.cancel')}</Button>
          <Button type="submit" variant="filled" loading={busy}>
            {p ? t('do.save') : t('project.create')}
          </Button>
        </div>
      </form>
      {p && <Members of={p} />}
    </div>
  )
}

function Members({ of: p }: { of: Project }) {
  const client = useQueryClient()
  const q = useQuery(membersQuery(p.id))
  const [email, setEmail] = useState<string | null>(null)
  const [error, setError] = useState<unknown>(null)
  const change = (mode: string, who: string) => {
    setError(null)
    return modifyProject(p.id, { user_update_mode: mode, user_uuids: [who] }).then(() => {
      setEmail(null)
      return client.invalidateQueries({ queryKey: ['tenancy'] })
    }, setError)
  }
  return (
    <Panel title={t('project.members', { n: q.data?.length ?? 0 })} body={false}>
      <div className="lines">
        <form
          className="row"
          onSubmit={(e) => {
            e.preventDefault()
            if (email !== null) void change('add', email)
          }}>
          <Picker
            size="xs"
            className="grow"
            placeholder={t('share.who')}
            aria-label={t('share.who')}
            of={userChoices}
            value={email}
            onChange={setEmail}
          />
          <Button type="submit" disabled={email === null}>
            {t('project.addmember')}
          </Button>
        </form>
        {error !== null && (
          <div>
            <ErrorState error={error} />
          </div>
        )}
        {q.isError ? (
          <div>
            <ErrorState error={q.error} retry={() => void q.refetch()} />
          </div>
        ) : !q.data ? (
          <div>
            <Skeleton lines={2} />
          </div>
        ) : (
          q.data.length > 0 && <MemberRows rows={q.data} onRemove={(who) => void change('remove', who)} />
        )}
      </div>
    </Panel>
  )
}

/** The members, of whom there may be thousands: only those in view are drawn. */
function MemberRows({ rows, onRemove }: { rows: Member[]; onRemove: (uuid: string) => void }) {
  const [q, setQ] = useState('')
  const columns: Column<Member>[] = [
    {
      id: 'email',
      title: t('share.who'),
      width: 'minmax(160px, 1fr)',
      cell: (m) => (
        <span className="row">
          <span className="cut" title={m.email}>
            {m.email}
          </span>
          {m.is_admin && <span className="tag">{t('role.admin')}</span>}
        </span>
      ),
    },
    {
      id: 'go',
      title: '',
      width: '110px',
      cell: (m) => (
        <Button size="compact-sm" h={26} onClick={() => onRemove(m.uuid)}>
          {t('project.removemember')}
        </Button>
      ),
    },
  ]
  return (
    <div className="members">
      {rows.length > 10 && (
        <TextInput
          type="search"
          size="xs"
          placeholder={t('user.find')}
          aria-label={t('user.find')}
          value={q}
          onChange={(e) => setQ(e.currentTarget.value)}
        />
      )}
      <Listing
        label={t('project.members', { n: rows.length })}
        columns={columns}
        rows={q ? rows.filter((m) => holds(`${m.email} ${m.full_name}`, q)) : rows}
        rowKey={(m) => m.uuid}
        empty={<p className="small soft pad">{t('find.none')}</p>}
      />
    </div>
  )
}

function DomainForm({ of: d, onDone }: { of: Domain | null; onDone: () => void }) {
  const client = useQueryClient()
  const [name, setName] = useState(d?.name ?? '')
  const [desc, setDesc] = useState(d?.description ?? '')
  const [active, setActive] = useState(d?.is_active ?? true)
  const slots = useQuery(slotsQuery)
  const was = parsed<Record<string, string>>(d?.total_resource_slots, {})
  const [limits, setLimits] = useState<Record<string, number | string>>(() =>
    Object.fromEntries(Object.entries(was).map(([s, v]) => [s, (amount(v) ?? 0) / (isMemory(s) ? GiB : 1)])),
  )
  const [busy, setBusy] = useState(false)
  const [error, setError] = useState<unknown>(null)
  const submit = (e: FormEvent) => {
    e.preventDefault()
    setBusy(true)
    setError(null)
    const total: Record<string, string> = {}
    for (const [s, v] of Object.entries(limits)) if (v !== '') total[s] = String(Math.round(Number(v) * (isMemory(s) ? GiB : 1)))
    const props = { description: desc, total_resource_slots: JSON.stringify(total) }
    const work = d ? modifyDomain(d.name, { ...props, is_active: active }) : createDomain(name.trim(), props)
    work
      .then(() => client.invalidateQueries({ queryKey: ['tenancy'] }))
      .then(onDone, setError)
      .finally(() => setBusy(false))
  }
  return (
    <form className="stack" onSubmit={submit}>
      {!d && (
        <TextInput
          label={t('col.name')}
          value={name}
          onChange={(e) => setName(e.currentTarget.value)}
          required
          data-autofocus
          maxLength={64}
        />
      )}
      <TextInput label={t('project.desc')} value={desc} onChange={(e) => setDesc(e.currentTarget.value)} />
      <span className="section-title">{t('domain.limits')}</span>
      <div className="grid2">
        {order([...new Set([...Object.keys(slots.data ?? {}), ...Object.keys(limits)])]).map((s) => (
          <NumberInput
            key={s}
            label={slotName(s) + (isMemory(s) ? ' (GiB)' : '')}
            value={limits[s] ?? ''}
            min={0}
            placeholder={t('policy.nolimit')}
            onChange={(v) => setLimits({ ...limits, [s]: v })}
          />
        ))}
      </div>
      {d && (
        <Switch
          label={t('status.active')}
          checked={active}
          onChange={(e) => setActive(e.currentTarget.checked)}
          description={t('project.domain.inactive')}
        />
      )}
      {error !== null && <ErrorState error={error} />}
      <div className="row to-end">
        <Button onClick={onDone}>{t('do.cancel')}</Button>
        <Button type="submit" variant="filled" loading={busy}>
          {d ? t('do.save') : t('project.createdomain')}
        </Button>
      </div>
    </form>
  )
}
