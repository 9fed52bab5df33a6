import { Button, Checkbox, Modal, Tabs, Tooltip } from '@mantine/core'
import { useQuery, useQueryClient } from '@tanstack/react-query'
import { getRouteApi, Link, useNavigate } from '@tanstack/react-router'
import { useEffect, useState, type ReactNode } from 'react'
import { amount, bytes, order, slotLine, slotName } from '@/design/amounts'
import { DataTable, Listing, type Column } from '@/design/DataTable'
import { Icon } from '@/design/icons'
import { usePaged } from '@/design/paged'
import {
  Ago,
  Cli,
  ConfirmAction,
  EmptyState,
  ErrorState,
  Facts,
  Meter,
  PageHead,
  Panel,
  Skeleton,
  StateBadge,
  toast,
  useTitle,
} from '@/design/parts'
import { SearchField } from '@/design/SearchField'
import { healthQuery } from '@/operation/queries'
import { endSession, queueQuery, type Session } from '@/session/queries'
import { t, tAny } from '@/words'
import { agentFigures, agentFilter, agentOrder, agentQuery, agentRowQuery, cordon, listAgents, schedulerQuery, type Agent } from './queries'
import { Devices } from './Devices'
import { Groups } from './Groups'
import { ClusterUse } from './ClusterUse'
import './cluster.css'

const route = getRouteApi('/admin/cluster')
const stateOfAgent = (a: Agent) => (a.status === 'ALIVE' && !a.schedulable ? 'CORDONED' : a.status)

export function ClusterPage() {
  const tab = route.useSearch().tab ?? 'agents'
  const go = useNavigate({ from: '/admin/cluster' })
  useTitle(t('nav.cluster'))
  const queue = useQuery(queueQuery)
  const scheduler = useQuery(schedulerQuery)
  const problems = useQuery(healthQuery(true))
  const search = route.useSearch()
  const open = search.agent ?? ''
  const setOpen = (id: string) => void go({ search: ({ agent: _, ...old }) => (id ? { ...old, agent: id } : old), replace: !id })
  const shown = useQuery({ ...agentRowQuery(open), enabled: !!open })
  const takeOut = useTakeOut()
  const groups = scheduler.data?.scaling_groups
  return (
    <div className="page">
      <PageHead
        title={t('nav.cluster')}
        sub={
          groups && (
            <span>
              {t('cluster.sum', { n: groups.reduce((n, g) => n + g.agents_alive + g.agents_lost, 0), w: queue.data?.total ?? 0 })}
            </span>
          )
        }
      />
      {!!problems.data?.length && (
        <Panel title={t('cluster.problems', { n: problems.data.length })} body={false}>
          <div className="lines">
            {problems.data.map((p, i) => (
              <div key={i} className="row top">
                <span className={`over-2 ${p.severity === 'error' ? 'bad' : 'warn'}`}>
                  <Icon name="warn" />
                </span>
                <div className="grow stack tight">
                  <span>
                    <strong className="medium">{p.object}</strong> {p.detail}
                  </span>
                  {p.next && <span className="soft small">{t('error.next', { next: p.next })}</span>}
                </div>
              </div>
            ))}
          </div>
        </Panel>
      )}
      <ClusterUse />
      <Tabs value={tab} onChange={(v) => void go({ search: v && v !== 'agents' ? { tab: v } : {}, replace: true })}>
        <Tabs.List>
          <Tabs.Tab value="agents">{t('nav.agents')}</Tabs.Tab>
          <Tabs.Tab value="queue" rightSection={queue.data?.total ? <span className="tag">{queue.data.total}</span> : null}>
            {t('cluster.queue')}
          </Tabs.Tab>
          <Tabs.Tab value="groups">{t('cluster.groups')}</Tabs.Tab>
        </Tabs.List>
      </Tabs>
      {tab === 'agents' && (
        <Agents
          search={search}
          set={(part) => void go({ search: (old) => ({ ...old, ...part }) as typeof old, replace: true })}
          onOpen={(a) => setOpen(a.id)}
          onDrain={takeOut.drain}
          onUncordon={takeOut.bringBack}
          busy={takeOut.busy}
        />
      )}
      {tab === 'queue' && <Queue rows={queue.data?.items} error={queue.error} retry={() => void queue.refetch()} group={search.group} />}
      {tab === 'groups' && <Groups />}
      <Modal opened={!!open} onClose={() => setOpen('')} title={open} size={680}>
        {shown.isError ? (
          <ErrorState error={shown.error} retry={() => void shown.refetch()} />
        ) : shown.data ? (
          <AgentDetail of={shown.data} />
        ) : shown.data === null ? (
          <EmptyState title={t('cluster.nosuch')} />
        ) : (
          <Skeleton lines={4} />
        )}
      </Modal>
    </div>
  )
}

/**
 * Takes nodes out and brings them back at once: what will happen stands above the list, nothing that runs is lost, and it can be taken back.
 */
function useTakeOut() {
  const client = useQueryClient()
  const [busy, setBusy] = useState('')
  const set = async (a: Agent, on: boolean) => {
    if (busy) return
    setBusy(a.id)
    try {
      await cordon(a.id, on)
      if (!on)
        toast(t('agent.drain.done', { name: a.id, n: a.container_count }), {
          label: t('agent.drain.undo'),
          run: () => void cordon(a.id, true).then(look, (e: Error) => toast(e.message)),
        })
      await look()
    } catch (err) {
      toast((err as Error).message)
    } finally {
      setBusy('')
    }
  }
  const look = () => client.invalidateQueries({ queryKey: ['resource'] })
  return { busy, drain: (a: Agent) => void set(a, false), bringBack: (a: Agent) => void set(a, true) }
}

/** More agents than these are rows of a table instead of tiles. */
const mostTiles = 48

export interface AgentSearch {
  q?: string | undefined
  show?: string | undefined
  order?: string | undefined
}

interface AgentsProps {
  search: AgentSearch
  set: (part: AgentSearch) => void
  onOpen: (a: Agent) => void
  onDrain: (a: Agent) => void
  onUncordon: (a: Agent) => void
  /** the agent that is taken out or brought back now */
  busy?: string
}

export function Agents({ search, set, onOpen, onDrain, onUncordon, busy = '' }: AgentsProps) {
  const filter = agentFilter(search.q, search.show === 'ill' ? 'ill' : 'all')
  const order = search.order ?? agentOrder
  const paged = usePaged<Agent>(['resource', 'agents', filter, order], (l, o, s) => listAgents(filter, order, l, o, s), agentFigures)
  const everything = !search.q && search.show !== 'ill'
  if (everything && paged.total === 0) {
    return <EmptyState title={t('cluster.noagents')} text={t('cluster.noagents.text')} cli="berth agent --config agent.toml" />
  }
  const few = paged.total !== undefined && paged.total <= mostTiles
  const held = (a: Agent, slot: string) => (
    <Meter slot={slot} used={amount(a.occupied[slot]) ?? 0} of={amount(a.available[slot]) ?? 0} label={slotName(slot)} />
  )
  const columns: Column<Agent>[] = [
    { id: 'id', title: t('col.name'), width: 'minmax(180px, 2fr)', sort: 'id', cell: (a) => <span title={a.id}>{a.id}</span> },
    {
      id: 'status',
      title: t('col.status'),
      width: '120px',
      sort: 'status',
      cell: (a) => <StateBadge status={stateOfAgent(a)} />,
      glow: stateOfAgent,
    },
    { id: 'group', title: t('about.group'), width: '140px', sort: 'scaling_group', wide: true, cell: (a) => a.scaling_group },
    { id: 'cpu', title: slotName('cpu'), width: 'minmax(160px, 1fr)', wide: true, cell: (a) => held(a, 'cpu') },
    { id: 'mem', title: slotName('mem'), width: 'minmax(160px, 1fr)', wide: true, cell: (a) => held(a, 'mem') },
    { id: 'containers', title: t('cluster.kernels'), width: '90px', num: true, cell: (a) => a.container_count },
    { id: 'version', title: t('agent.version'), width: '120px', sort: 'version', wide: true, cell: (a) => a.version },
    {
      id: 'go',
      title: '',
      width: '120px',
      wide: true,
      cell: (a) => <TakeOut of={a} onDrain={onDrain} onUncordon={onUncordon} busy={busy} />,
    },
  ]
  return (
    <>
      {(!few || !everything) && (
        <div className="row wrap">
          {(['all', 'ill'] as const).map((s) => (
            <button
              key={s}
              type="button"
              className="chip"
              aria-pressed={(search.show ?? 'all') === s}
              onClick={() => set({ show: s === 'all' ? undefined : s })}>
              {t(`cluster.show.${s}`)}
            </button>
          ))}
          <SearchField label={t('cluster.find')} value={search.q} onFind={(q) => set({ q })} />
        </div>
      )}
      {!!paged.total && (
        <p className="small soft" id={drainWords}>
          {t('agent.drain.words')}
        </p>
      )}
      {paged.error && paged.total === undefined ? (
        <ErrorState error={paged.error} retry={paged.retry} />
      ) : paged.total === undefined ? (
        <Skeleton lines={4} h={40} />
      ) : few && paged.total > 0 ? (
        <div className="tiles">
          {Array.from({ length: paged.total }, (_, i) => paged.row(i)).map(
            (a) =>
              a && (
                <Tile key={a.id} of={a} onOpen={() => onOpen(a)}>
                  <TakeOut of={a} onDrain={onDrain} onUncordon={onUncordon} busy={busy} tile />
                </Tile>
              ),
          )}
        </div>
      ) : (
        <div className="panel">
          <DataTable
            label={t('nav.agents')}
            columns={columns}
            total={paged.total}
            row={paged.row}
            rowKey={(a) => a.id}
            onRange={paged.onRange}
            onOpen={onOpen}
            error={paged.error}
            retry={paged.retry}
            order={order}
            onOrder={(o) => set({ order: o })}
            empty={
              <EmptyState
                title={t('cluster.nofound')}
                action={<Button onClick={() => set({ q: undefined, show: undefined })}>{t('filter.clear')}</Button>}
              />
            }
          />
        </div>
      )}
    </>
  )
}

/** Where it is written what the buttons do. */
const drainWords = 'drain-words'

interface TakeOutProps extends Pick<AgentsProps, 'onDrain' | 'onUncordon'> {
  of: Agent
  busy: string
  tile?: boolean
}

/** The button that takes an agent out, or brings back the one that was taken out. */
function TakeOut({ of: a, onDrain, onUncordon, busy, tile = false }: TakeOutProps) {
  if (a.status !== 'ALIVE') return null
  return (
    <Button
      {...(tile ? { className: 'tileact' } : {})}
      size="compact-xs"
      loading={busy === a.id}
      disabled={busy !== '' && busy !== a.id}
      onClick={() => (a.schedulable ? onDrain(a) : onUncordon(a))}
      aria-describedby={drainWords}
      aria-label={t(a.schedulable ? 'agent.drain.what' : 'agent.uncordon.what', { name: a.id })}>
      {t(a.schedulable ? 'agent.drain.short' : 'agent.uncordon.short')}
    </Button>
  )
}

/** An agent with its devices as cells. Unmeasured devices say so instead of showing nothing. */
function Tile({ of: a, onOpen, children }: { of: Agent; onOpen: () => void; children: ReactNode }) {
  const devices = a.hardware.filter((d) => d.Slot !== 'mem')
  const held = Object.fromEntries(
    Object.keys(a.available).map((s) => [s, { used: amount(a.occupied[s]) ?? 0, all: amount(a.available[s]) ?? 0 }]),
  )
  const full: Record<string, number> = {}
  for (const [s, h] of Object.entries(held)) full[s] = h.all ? h.used / h.all : 0
  const seen: Record<string, number> = {}
  return (
    <div className="holder">
      <button type="button" className="tile" onClick={onOpen} aria-label={t('cluster.open', { name: a.id })}>
        <span className="row">
          <strong className="cut grow strong">{a.id}</strong>
          <StateBadge status={stateOfAgent(a)} />
        </span>
        <span className="small dim">
          {a.scaling_group} · {a.architecture}
          {a.container_count ? ` · ${t('cluster.containers', { n: a.container_count })}` : ''}
        </span>
        <span className="cells" aria-hidden="true">
          {devices.map((d) => {
            const nth = (seen[d.Slot] = (seen[d.Slot] ?? 0) + 1)
            const on = nth <= Math.round((full[d.Slot] ?? 0) * devices.filter((x) => x.Slot === d.Slot).length)
            const stat = a.devices[d.Slot.replace(/\..*/, '') + '_util']?.[d.ID]
            return (
              <Tooltip
                key={`${d.Slot}-${d.ID}`}
                label={`${slotName(d.Slot)} ${d.ID}${d.Healthy ? '' : `: ${t('cluster.broken')}`}${stat ? ` · ${Math.round(Number(stat.pct))} %` : ''}`}>
                <i className={!d.Healthy ? 'bad' : on ? 'on' : ''} />
              </Tooltip>
            )
          })}
        </span>
        <span className="stack tight gap-8">
          {order(Object.keys(held)).map((s) => (
            <Meter key={s} slot={s} used={held[s]!.used} of={held[s]!.all} label={slotName(s)} />
          ))}
        </span>
        {a.node['cpu_util'] && (
          <span className="small dim">
            {t('cluster.measured', { cpu: Math.round(Number(a.node['cpu_util'].pct)), mem: bytes(a.node['mem']?.current) })}
          </span>
        )}
        {a.conditions.length > 0 && <span className="small bad">{a.conditions.map((c) => c.detail ?? c.msg ?? c.kind).join('; ')}</span>}
      </button>
      {children}
    </div>
  )
}

/** Takes a node out: what will happen is written before. Sessions there end only when that is asked for. */
function Drain({ of, onClose }: { of: Agent | null; onClose: () => void }) {
  const client = useQueryClient()
  const [end, setEnd] = useState(false)
  const id = of?.id ?? ''
  const n = useQuery({ ...agentQuery(id), enabled: !!of }).data?.session_count ?? of?.container_count ?? 0
  useEffect(() => setEnd(false), [id])
  return (
    <ConfirmAction
      open={!!of}
      onClose={onClose}
      title={t('agent.drain')}
      verb={t('agent.drain')}
      doing={t('agent.drain')}
      danger={end}
      onDo={async () => {
        await cordon(id, false)
        await client.invalidateQueries({ queryKey: ['resource'] })
        if (!end) return
        // What was on its way here when it was cordoned shows itself in a later look.
        const work = await client.fetchQuery({ ...agentQuery(id), staleTime: 0 })
        const ended = await Promise.allSettled(
          work.sessions.filter((w) => w.status !== 'TERMINATING').map((w) => endSession(w.id, w.status !== 'RUNNING')),
        )
        const refused = ended.find((r) => r.status === 'rejected')
        if (refused) throw refused.reason
        await client.invalidateQueries({ queryKey: ['resource'] })
      }}>
      <div className="stack">
        <span>{t('agent.drain.text', { name: id, n })}</span>
        {n > 0 && (
          <Checkbox
            label={t('agent.drain.end', { n })}
            description={t('agent.drain.end.text')}
            checked={end}
            onChange={(e) => setEnd(e.currentTarget.checked)}
          />
        )}
      </div>
    </ConfirmAction>
  )
}

function AgentDetail({ of: a }: { of: Agent }) {
  const client = useQueryClient()
  const q = useQuery(agentQuery(a.id))
  const [ask, setAsk] = useState(false)
  const [drain, setDrain] = useState(false)
  const [error, setError] = useState<unknown>(null)
  const set = (on: boolean) => cordon(a.id, on).then(() => client.invalidateQueries({ queryKey: ['resource'] }))
  const n = q.data?.session_count ?? 0
  return (
    <div className="stack">
      <Facts
        of={[
          [t('col.status'), <StateBadge key="s" status={stateOfAgent(a)} />],
          [t('about.group'), a.scaling_group],
          [t('agent.addr'), <code key="a">{a.addr}</code>],
          [t('agent.version'), a.version],
          [t('agent.first'), <Ago key="f" at={a.first_contact} />],
          [
            t('agent.free'),
            slotLine(
              Object.fromEntries(
                Object.keys(a.available).map((s) => [s, String((amount(a.available[s]) ?? 0) - (amount(a.occupied[s]) ?? 0))]),
              ),
            ) || t('agent.nothing'),
          ],
        ]}
      />
      <Panel title={t('agent.sessions', { n })} body={false}>
        {q.isError ? (
          <div className="body">
            <ErrorState error={q.error} retry={() => void q.refetch()} />
          </div>
        ) : !q.data ? (
          <div className="body">
            <Skeleton lines={2} />
          </div>
        ) : q.data.sessions.length === 0 ? (
          <div className="body dim">{t('agent.idle')}</div>
        ) : (
          <div className="lines scroll-m">
            {q.data.sessions.map((s) => (
              <div key={s.id} className="row">
                <Link to="/sessions/$id" params={{ id: s.id }} className="grow cut">
                  {s.name}
                </Link>
                <span className="dim small">{s.user_email}</span>
                <StateBadge status={s.status} />
              </div>
            ))}
          </div>
        )}
      </Panel>
      <Devices of={a} sessions={q.data?.sessions ?? []} />
      {!a.schedulable && q.data && (
        <div className="note info" role="status">
          <Icon name="info" />
          <span>{n ? t('agent.left', { n }) : t('agent.drained')}</span>
        </div>
      )}
      {error !== null && <ErrorState error={error} />}
      <div className="row wrap">
        {a.schedulable ? (
          <Button onClick={() => setAsk(true)}>{t('agent.cordon')}</Button>
        ) : (
          <Button
            variant="filled"
            onClick={() => {
              setError(null)
              set(true).catch(setError)
            }}>
            {t('agent.uncordon')}
          </Button>
        )}
        {(a.schedulable || n > 0) && <Button onClick={() => setDrain(true)}>{t('agent.drain')}</Button>}
      </div>
      <Cli line={`berth agent drain ${a.id}`} />
      <ConfirmAction
        open={ask}
        onClose={() => setAsk(false)}
        title={t('agent.cordon.title', { name: a.id })}
        verb={t('agent.cordon')}
        doing={t('agent.cordon')}
        danger={false}
        onDo={() => set(false)}>
        {t('agent.cordon.text', { n })}
      </ConfirmAction>
      <Drain of={drain ? a : null} onClose={() => setDrain(false)} />
    </div>
  )
}

function Queue(p: { rows: Session[] | undefined; error: unknown; retry: () => void; group: string | undefined }) {
  const go = useNavigate({ from: '/admin/cluster' })
  const scheduler = useQuery(schedulerQuery)
  const groups = (scheduler.data?.scaling_groups ?? []).filter((g) => g.pending > 0 || g.name === p.group)
  const rows = p.group ? p.rows?.filter((s) => s.scaling_group === p.group) : p.rows
  const choose = (group: string | undefined) => void go({ search: group ? { tab: 'queue', group } : { tab: 'queue' }, replace: true })
  const columns: Column<Session>[] = [
    {
      id: 'name',
      title: t('col.name'),
      width: 'minmax(160px, 1fr)',
      cell: (s) => (
        <Link className="ink" to="/sessions/$id" params={{ id: s.id }}>
          {s.name}
        </Link>
      ),
    },
    { id: 'why', title: t('col.why'), width: 'minmax(240px, 3fr)', cell: (s) => <span title={s.why}>{s.why}</span> },
    { id: 'slots', title: t('col.resources'), width: 'minmax(130px, 1fr)', wide: true, cell: (s) => slotLine(s.slots) },
    { id: 'who', title: t('col.owner'), width: 'minmax(140px, 1fr)', wide: true, cell: (s) => s.user_email },
    { id: 'group', title: t('about.group'), width: '120px', wide: true, cell: (s) => s.scaling_group },
    { id: 'since', title: t('wait.since'), width: '120px', cell: (s) => <Ago at={s.created_at} /> },
  ]
  return (
    <>
      <div className="row wrap">
        <button type="button" className="chip" aria-pressed={!p.group} onClick={() => choose(undefined)}>
          {t('queue.every')}
        </button>
        {groups.map((g) => (
          <button key={g.name} type="button" className="chip" aria-pressed={g.name === p.group} onClick={() => choose(g.name)}>
            {g.name}
          </button>
        ))}
        <span className="soft small end">
          {groups
            .filter((g) => !p.group || g.name === p.group)
            .flatMap((g) => Object.entries(g.reasons).map(([r, n]) => t('queue.counted', { n, reason: tAny(`reason.${r}`, r) })))
            .join(', ')}
        </span>
      </div>
      <div className="panel">
        <Listing
          label={t('cluster.queue')}
          columns={columns}
          rows={rows}
          rowKey={(s) => s.id}
          error={p.error}
          retry={p.retry}
          onOpen={(s) => void go({ to: '/sessions/$id', params: { id: s.id } })}
          empty={<EmptyState title={t('cluster.noqueue')} cli="berth scheduler info" />}
        />
      </div>
    </>
  )
}
