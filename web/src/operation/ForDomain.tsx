import { queryOptions, useQuery } from '@tanstack/react-query'
import { Link } from '@tanstack/react-router'
import { order, slotName } from '@/design/amounts'
import { Ago, ErrorState, Panel, Skeleton } from '@/design/parts'
import { listSessions, queueQuery } from '@/session/queries'
import { useMe } from '@/tenancy/me'
import { listProjects, listUsers, projectFilter } from '@/tenancy/queries'
import { t } from '@/words'
import { usageQuery } from './queries'
import { months, rounded } from './trend'

/** How much there is in the domain. Lists of an administrator of a domain hold nothing else. */
export const domainQuery = (domain: string) =>
  queryOptions({
    queryKey: ['tenancy', 'domain', domain],
    queryFn: async ({ signal }) => {
      const [users, projects] = await Promise.all([
        listUsers('status == "active"', 'email', 1, 0, signal),
        listProjects(projectFilter(undefined, 'active', domain), 'name', 1, 0, signal),
      ])
      return { users: users.total, projects: projects.total }
    },
  })

const liveQuery = queryOptions({
  queryKey: ['session', 'domain', 'live'],
  queryFn: async ({ signal }) => (await listSessions({ status: 'live' }, '', 1, 0, signal)).total,
})

/** For administrators of a domain: how much there is in it, what waits and why, and who held the most this month. */
export function ForDomain() {
  const me = useMe()
  return (
    <>
      <There domain={me.domain_name} />
      <Waiting />
      <Holders />
    </>
  )
}

function There({ domain }: { domain: string }) {
  const there = useQuery(domainQuery(domain))
  const live = useQuery(liveQuery)
  const error = there.error ?? live.error
  return (
    <Panel title={t('home.domain', { name: domain })}>
      {error && (!there.data || live.data === undefined) ? (
        <ErrorState error={error} retry={() => void Promise.all([there.refetch(), live.refetch()])} />
      ) : !there.data || live.data === undefined ? (
        <Skeleton lines={3} />
      ) : (
        <div className="stack tight">
          {(
            [
              ['/sessions', 'nav.sessions', live.data],
              ['/admin/users', 'nav.users', there.data.users],
              ['/admin/projects', 'nav.projects', there.data.projects],
            ] as const
          ).map(([to, word, n]) => (
            <div key={to} className="row small">
              <Link to={to} className="grow">
                {t(word)}
              </Link>
              <span>{n.toLocaleString()}</span>
            </div>
          ))}
        </div>
      )}
    </Panel>
  )
}

function Waiting() {
  const q = useQuery(queueQuery)
  return (
    <Panel
      title={t('home.queue')}
      acts={
        !!q.data?.total && (
          <Link to="/sessions" search={{ status: 'waiting' }} className="small">
            {t('home.all', { n: q.data.total })}
          </Link>
        )
      }>
      {q.isError && !q.data ? (
        <ErrorState error={q.error} retry={() => void q.refetch()} />
      ) : !q.data ? (
        <Skeleton lines={2} />
      ) : q.data.total === 0 ? (
        <span className="soft">{t('home.queue.none')}</span>
      ) : (
        <div className="stack tight">
          {q.data.items.slice(0, 5).map((s) => (
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

/** Who held the most in this month, by hours of what is dearest: accelerators where there are some, cores otherwise. */
export function Holders() {
  const month = months(new Date())[0]!.value
  const q = useQuery(usageQuery(month, 'user'))
  const slots = order([...new Set((q.data?.rows ?? []).flatMap((r) => r.slots.map((s) => s.slot)))])
  const slot = slots.find((s) => s !== 'cpu' && s !== 'mem') ?? 'cpu'
  const hours = (r: { slots: { slot: string; hours: string }[] }) => Number(r.slots.find((s) => s.slot === slot)?.hours ?? 0)
  const rows = [...(q.data?.rows ?? [])].filter((r) => hours(r) > 0).sort((a, b) => hours(b) - hours(a))
  return (
    <Panel
      title={t('home.holders', { what: slotName(slot) })}
      acts={
        <Link to="/admin/usage" search={{ by: 'user' }} className="small">
          {t('do.open')}
        </Link>
      }>
      {q.isError && !q.data ? (
        <ErrorState error={q.error} retry={() => void q.refetch()} />
      ) : !q.data ? (
        <Skeleton lines={3} />
      ) : rows.length === 0 ? (
        <span className="soft">{t('home.holders.none')}</span>
      ) : (
        <div className="stack tight">
          {rows.slice(0, 5).map((r) => (
            <div key={r.key} className="row small">
              <span className="grow cut" title={r.name}>
                {r.name}
              </span>
              <span>{t('home.holders.hours', { n: rounded(String(hours(r))) })}</span>
            </div>
          ))}
        </div>
      )}
    </Panel>
  )
}
