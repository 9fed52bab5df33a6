import { useQuery } from '@tanstack/react-query'
import { Link } from '@tanstack/react-router'
import { amount, slotName } from '@/design/amounts'
import { Ago, ErrorState, Meter, Panel, Skeleton, StateBadge } from '@/design/parts'
import { ClusterUse } from '@/resource/ClusterUse'
import { illAgentsQuery, schedulerQuery } from '@/resource/queries'
import { queueQuery } from '@/session/queries'
import { t, tAny } from '@/words'
import { Holders } from './ForDomain'

/** For administrators: who uses the cluster now and over time, which agents are not well, and what waits for what. */
export function ForAdministrators() {
  return (
    <>
      <ClusterNow />
      <Queue />
      <Holders />
      <ClusterUse />
    </>
  )
}

/** Reasons for which sessions wait, the most frequent first, added up over the groups. */
export function reasonsOf(groups: { reasons: Record<string, number> }[]): [string, number][] {
  const sums: Record<string, number> = {}
  for (const g of groups) for (const [r, n] of Object.entries(g.reasons)) sums[r] = (sums[r] ?? 0) + n
  return Object.entries(sums).sort((a, b) => b[1] - a[1] || a[0].localeCompare(b[0]))
}

/** What waits: how many for which reason, and who waits longest. */
function Queue() {
  const sched = useQuery(schedulerQuery)
  const queue = useQuery(queueQuery)
  const groups = sched.data?.scaling_groups ?? []
  const waiting = groups.reduce((n, g) => n + g.pending, 0)
  return (
    <Panel
      title={t('home.queue')}
      acts={
        waiting > 0 && (
          <Link to="/sessions" search={{ status: 'waiting' }} className="small">
            {t('home.all', { n: waiting })}
          </Link>
        )
      }>
      {sched.isError && !sched.data ? (
        <ErrorState error={sched.error} retry={() => void sched.refetch()} />
      ) : !sched.data ? (
        <Skeleton lines={2} />
      ) : waiting === 0 ? (
        <span className="soft">{t('home.queue.none')}</span>
      ) : (
        <div className="stack tight">
          {reasonsOf(groups).map(([r, n]) => (
            <div key={r} className="row small">
              <span className="grow">{tAny(`reason.${r}`, r)}</span>
              <span>{n.toLocaleString()}</span>
            </div>
          ))}
          {(queue.data?.items ?? []).slice(0, 3).map((s) => (
            <div key={s.id} className="small">
              <div className="row">
                <Link to="/sessions/$id" params={{ id: s.id }} className="grow cut" title={s.name}>
                  {s.name}
                </Link>
                <span className="dim cut">{s.user_email}</span>
                <Ago at={s.created_at} />
              </div>
              {s.why && <div className="soft">{s.why}</div>}
            </div>
          ))}
        </div>
      )}
    </Panel>
  )
}

function ClusterNow() {
  const sched = useQuery(schedulerQuery)
  const ill = useQuery(illAgentsQuery).data
  const sums: Record<string, { used: number; all: number }> = {}
  for (const g of sched.data?.scaling_groups ?? []) {
    for (const [slot, all] of Object.entries(g.capacity)) {
      const at = (sums[slot] ??= { used: 0, all: 0 })
      at.all += amount(all) ?? 0
      at.used += amount(g.occupied[slot]) ?? 0
    }
  }
  const sum = (of: 'agents_alive' | 'agents_lost') => (sched.data?.scaling_groups ?? []).reduce((n, g) => n + g[of], 0)
  const lost = sum('agents_lost')
  return (
    <Panel
      title={t('home.cluster')}
      acts={
        <Link to="/admin/cluster" className="small">
          {t('do.open')}
        </Link>
      }>
      {sched.isError ? (
        <ErrorState error={sched.error} retry={() => void sched.refetch()} />
      ) : !sched.data ? (
        <Skeleton lines={3} />
      ) : (
        <div className="stack">
          {Object.entries(sums)
            .sort(([a], [b]) => (a === 'cpu' ? -1 : b === 'cpu' ? 1 : a.localeCompare(b)))
            .map(([slot, s]) => (
              <Meter key={slot} slot={slot} used={s.used} of={s.all} label={slotName(slot)} />
            ))}
          <div className="row small">
            <span className="grow soft">{t('nav.agents')}</span>
            <span>
              {sum('agents_alive').toLocaleString()}
              {lost > 0 && <span className="bad"> · {t('agent.lost', { n: lost })}</span>}
            </span>
          </div>
          {ill?.items.map((a) => (
            <div key={a.id} className="row small">
              <Link to="/admin/cluster" search={{ agent: a.id }} className="grow cut" title={a.id}>
                {a.id}
              </Link>
              <StateBadge status={a.status === 'ALIVE' ? 'CORDONED' : a.status} plain />
            </div>
          ))}
          {ill && ill.total > ill.items.length && (
            <Link to="/admin/cluster" search={{ show: 'ill' }} className="small">
              {t('home.more', { n: ill.total - ill.items.length })}
            </Link>
          )}
        </div>
      )}
    </Panel>
  )
}
