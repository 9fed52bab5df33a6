import { Button, Menu, Tabs } from '@mantine/core'
import { useQuery, useQueryClient } from '@tanstack/react-query'
import { getRouteApi, Link, useNavigate } from '@tanstack/react-router'
import { lazy, Suspense, useState, type ReactNode } from 'react'
import { AppButton } from '@/app/AppButton'
import { appsQuery, forBrowser } from '@/app/queries'
import { bytes, slotLine } from '@/design/amounts'
import { Icon } from '@/design/icons'
import {
  Ago,
  Bone,
  Cli,
  ConfirmAction,
  Copy,
  EmptyState,
  ErrorState,
  Facts,
  Id,
  PageHead,
  Panel,
  Skeleton,
  StateBadge,
  toast,
  useTitle,
} from '@/design/parts'
import { isOver } from '@/design/state'
import { clock, exact, instant, span, useNow } from '@/design/time'
import { ImageMark } from '@/image/ImageMark'
import { t, tAny, type Word } from '@/words'
import { CopyAs } from '@/design/CopyAs'
import { useAgain } from './again'
import { Commit } from './Commit'
import { isFailedEnd } from './ends'
import { HeldDevices } from './HeldDevices'
import { Logs } from './Logs'
import { commitQuery, endSession, keepAlive, movesQuery, sessionInfoQuery, sessionQuery, type SessionDetail } from './queries'
import { SessionFiles } from './SessionFiles'
import { Apps, Connect, Kernels } from './SessionParts'
import { stepsOf } from './timeline'
import { UseOf } from './UseOf'

const Terminal = lazy(() => import('./Terminal'))
const route = getRouteApi('/sessions/$id')

export function SessionPage() {
  const { id } = route.useParams()
  const q = useQuery(sessionQuery(id))
  useTitle(q.data?.name ?? t('nav.sessions'))
  if (q.isError && !q.data)
    return (
      <div className="page">
        <ErrorState error={q.error} retry={() => void q.refetch()} what={t('session.noload')} />
      </div>
    )
  if (q.isPending)
    return (
      <div className="page">
        <Bone w={260} h={28} />
        <Skeleton lines={2} />
        <div className="panel body pad-m">
          <Skeleton lines={8} />
        </div>
      </div>
    )
  if (!q.data) {
    return (
      <div className="page">
        <EmptyState
          title={t('session.gone')}
          text={t('session.gone.text')}
          cli="berth session list --all"
          action={
            <Button component={Link} to="/sessions">
              {t('session.all')}
            </Button>
          }
        />
      </div>
    )
  }
  return <Detail of={q.data} at={q.dataUpdatedAt} key={id} />
}

function Detail({ of: s, at }: { of: SessionDetail; at: number }) {
  const go = useNavigate({ from: '/sessions/$id' })
  const client = useQueryClient()
  const search = route.useSearch()
  const over = isOver(s.status)
  const running = s.status === 'RUNNING'
  const apps = useQuery({ ...appsQuery(s.id), enabled: running })
  const [asking, setAsking] = useState<'' | 'end' | 'commit'>('')
  const committing = useQuery({ ...commitQuery(s.id), enabled: running }).data?.status === 'ongoing'
  const gone = [...(running ? [] : ['terminal', 'files', 'connect']), ...(over ? ['about'] : [])]
  const asked = gone.includes(search.tab ?? '') ? 'logs' : search.tab
  const tab = asked ?? (running && s.type.toLowerCase() !== 'batch' ? 'terminal' : 'logs')
  const [visited, setVisited] = useState<Set<string>>(new Set())
  if (!visited.has(tab)) setVisited(new Set(visited).add(tab))
  const browser = (apps.data ?? []).filter(forBrowser)
  const main = browser.find((a) => a.name !== 'ttyd' && a.state !== 'missing')
  const like = () => void go({ to: '/sessions/new', search: { from: s.id } })
  const { again: start, busy: starting } = useAgain()
  const again = () => start(s.id)
  return (
    <div className="page">
      <PageHead
        title={
          <span className="row">
            <ImageMark name={s.image} size="large" />
            {s.name}
          </span>
        }
        sub={
          <>
            <StateBadge status={s.status} result={s.result} />
            <span>{t(`type.${s.type.toLowerCase()}` as Word)}</span>
            <span>{over ? <Ago at={s.terminated_at} /> : <Ago at={s.created_at} />}</span>
            <Ends of={s} />
            <Id id={s.id} />
          </>
        }>
        {running && main && <AppButton session={s.id} app={main.name} main size="compact-md" />}
        {over && (
          <Button variant="filled" onClick={again} loading={!!starting} leftSection={<Icon name="play" size={14} />}>
            {t('session.again')}
          </Button>
        )}
        {!over && (
          <Button onClick={() => setAsking('end')} disabled={s.status === 'TERMINATING'} leftSection={<Icon name="stop" size={14} />}>
            {s.status === 'TERMINATING' ? t('session.ending') : t('session.end')}
          </Button>
        )}
        <Menu position="bottom-end">
          <Menu.Target>
            <button type="button" className="iconbtn" aria-label={t('do.more')}>
              <Icon name="more" />
            </button>
          </Menu.Target>
          <Menu.Dropdown>
            <Menu.Item onClick={like}>{t('session.copyof')}</Menu.Item>
            {running && (
              <Menu.Item
                onClick={() =>
                  void keepAlive(s.id, '2h').then(
                    (r) => {
                      toast(t('session.kept', { until: clock(r.until) }))
                      void client.invalidateQueries({ queryKey: ['session'] })
                    },
                    (e: Error) => toast(e.message),
                  )
                }>
                {t('session.keep')}
              </Menu.Item>
            )}
            {running && (
              <Menu.Item onClick={() => setAsking('commit')} disabled={committing}>
                {committing ? t('commit.going') : t('commit.do')}
              </Menu.Item>
            )}
            <CopyAs
              cli={over ? `berth session info ${s.name}` : `berth session logs --follow ${s.name}`}
              api={{ method: 'GET', path: `/session/${s.id}` }}
            />
            {!over && (
              <Menu.Item
                color="var(--b-failed)"
                onClick={() =>
                  void endSession(s.id, true).then(
                    () => client.invalidateQueries({ queryKey: ['session'] }),
                    (e: Error) => toast(e.message),
                  )
                }>
                {t('session.force')}
              </Menu.Item>
            )}
          </Menu.Dropdown>
        </Menu>
      </PageHead>
      <Ended of={s} again={again} />
      <Timeline of={s} />
      <div className="cols">
        <section className="panel clipped">
          <Tabs value={tab} onChange={(v) => void go({ search: v ? { tab: v } : {}, replace: true })} keepMounted>
            <Tabs.List className="pad-tabs">
              {running && <Tabs.Tab value="terminal">{t('tab.terminal')}</Tabs.Tab>}
              <Tabs.Tab value="logs">{t('tab.logs')}</Tabs.Tab>
              {running && <Tabs.Tab value="files">{t('tab.files')}</Tabs.Tab>}
              <Tabs.Tab value="events">{t('tab.events')}</Tabs.Tab>
              {s.kernels.length > 1 && <Tabs.Tab value="kernels">{t('tab.kernels', { n: s.kernels.length })}</Tabs.Tab>}
              {running && <Tabs.Tab value="connect">{t('tab.connect')}</Tabs.Tab>}
              {!over && <Tabs.Tab value="about">{t('tab.about')}</Tabs.Tab>}
            </Tabs.List>
            {running && (
              <Tabs.Panel value="terminal">
                {visited.has('terminal') && (
                  <Suspense fallback={<div className="screen" />}>
                    <Terminal session={s.id} active={tab === 'terminal'} />
                  </Suspense>
                )}
              </Tabs.Panel>
            )}
            <Tabs.Panel value="logs">
              {visited.has('logs') && (
                <Logs session={s.id} live={!over} kernels={s.kernels} start={search.kernel ?? ''} key={search.kernel ?? ''} />
              )}
            </Tabs.Panel>
            <Tabs.Panel value="events">
              <Events id={s.id} status={s.status} />
            </Tabs.Panel>
            <Tabs.Panel value="kernels">
              <Kernels of={s} onLog={(kernel) => void go({ search: { tab: 'logs', kernel } })} />
            </Tabs.Panel>
            {running && (
              <Tabs.Panel value="files">
                {visited.has('files') && (
                  <SessionFiles
                    id={s.id}
                    name={s.name}
                    path={search.path ?? '.'}
                    onPath={(path) => void go({ search: path === '.' ? { tab: 'files' } : { tab: 'files', path } })}
                  />
                )}
              </Tabs.Panel>
            )}
            {running && (
              <Tabs.Panel value="connect">
                <Connect of={s} />
              </Tabs.Panel>
            )}
            {!over && (
              <Tabs.Panel value="about">
                <About of={s} />
              </Tabs.Panel>
            )}
          </Tabs>
        </section>
        <div className="stack">
          {s.status === 'PENDING' && <Waiting of={s} />}
          {running && <UseOf of={s} at={at} over={false} />}
          {running && <HeldDevices session={s.id} name={s.name} />}
          {running && <Apps session={s.id} name={s.name} />}
          {over && <UseOf of={s} at={at} over />}
          {over && (
            <Panel title={t('tab.about')} body={false}>
              <About of={s} />
            </Panel>
          )}
        </div>
      </div>
      <Commit open={asking === 'commit'} onClose={() => setAsking('')} id={s.id} name={s.name} />
      <ConfirmAction
        open={asking === 'end'}
        onClose={() => setAsking('')}
        title={t('session.end.one', { name: s.name })}
        verb={t('session.end')}
        doing={t('session.ending')}
        onDo={async () => {
          await endSession(s.id)
          await client.invalidateQueries({ queryKey: ['session'] })
        }}>
        {t('session.end.loses')}
      </ConfirmAction>
    </div>
  )
}

/** When it ends by itself, and why. */
function Ends({ of: s }: { of: SessionDetail }) {
  const now = useNow(15_000)
  const first = Object.values(s.idle)
    .filter((c) => c.ends_at && !c.dry_run)
    .sort((a, b) => (instant(a.ends_at) ?? 0) - (instant(b.ends_at) ?? 0))[0]
  if (!first || s.status !== 'RUNNING') return null
  const left = (instant(first.ends_at) ?? 0) - now
  return (
    <span className={left < 600_000 ? 'warn' : ''} title={`${exact(first.ends_at)} · ${first.source}: ${first.why}`}>
      {t('session.ends', { t: span(Math.max(0, left)) })}
    </span>
  )
}

/** How it ended comes first on the page of an ended session. */
function Ended({ of: s, again }: { of: SessionDetail; again: () => void }) {
  const info = useQuery({ ...sessionInfoQuery(s.id), enabled: isOver(s.status) }).data
  if (!isOver(s.status)) return null
  const failed = isFailedEnd({ status: s.status, result: s.result, why: s.status_info })
  const err = (s.data['error'] as { repr?: string } | undefined)?.repr
  const code = info?.exitCode ?? s.kernels[0]?.exit_code
  return (
    <div className={`note ${failed ? 'bad' : 'info'}`}>
      <Icon name={failed ? 'warn' : 'info'} />
      <div className="grow">
        <strong>{tAny(`ended.${s.status_info}`, s.status_info || tAny(`status.${s.status}`))}</strong>
        {code !== null && code !== undefined && <span> · {t('session.exit', { code })}</span>}
        {err && <div className="mono over-4">{err}</div>}
        {s.terminated_at && <div className="small dim">{exact(s.terminated_at)}</div>}
      </div>
      {failed && <Button onClick={again}>{t('session.again')}</Button>}
    </div>
  )
}

function Timeline({ of: s }: { of: SessionDetail }) {
  const now = useNow(isOver(s.status) ? 3_600_000 : 1000)
  const steps = stepsOf(s.history, now)
  const pull = s.data['pull'] as { current: number; total: number } | undefined
  return (
    <ol className="steps" aria-label={t('session.timeline')}>
      {steps.map((p, i) => (
        <li key={p.status} className={`row small${i < steps.length - 1 ? ' past' : ''} gap-6`}>
          {i > 0 && <span className="step-line" aria-hidden="true" />}
          <StateBadge status={p.status} plain={i < steps.length - 1} />
          {p.ms !== null && (
            <span className="dim" title={exact(new Date(p.at).toISOString())}>
              {span(p.ms)}
            </span>
          )}
          {p.status === 'PULLING' && s.status === 'PULLING' && pull && (
            <span className="dim">
              {bytes(pull.current)}
              {pull.total > 0 ? ` / ${bytes(pull.total)}` : ''}
            </span>
          )}
        </li>
      ))}
    </ol>
  )
}

/** Why it waits, for how long, and what would let it start. */
function Waiting({ of: s }: { of: SessionDetail }) {
  const e = s.explanation
  const now = useNow()
  return (
    <Panel title={t('wait.title')}>
      <div className="stack">
        <p>{e?.msg || s.why || t('wait.looking')}</p>
        <Facts
          of={[
            ...(e?.position
              ? [[t('wait.place'), t('wait.of', { n: e.position, all: e.queue ?? e.position })] as [ReactNode, ReactNode]]
              : []),
            [
              t('wait.start'),
              e?.estimate ? <span title={exact(e.estimate)}>{t('wait.latest', { t: clock(e.estimate) })}</span> : t('wait.unknown'),
            ],
            [t('wait.since'), span(now - (instant(s.created_at) ?? now))],
          ]}
        />
        {!!e?.remedies?.length && (
          <div className="stack tight">
            <span className="section-title">{t('wait.now')}</span>
            <ul className="soft bullets">
              {e.remedies.map((r) => (
                <li key={r}>{r}</li>
              ))}
            </ul>
          </div>
        )}
        <Cli line={`berth session why ${s.name}`} />
      </div>
    </Panel>
  )
}

function Events({ id, status }: { id: string; status: string }) {
  const q = useQuery({ ...movesQuery(id), queryKey: ['session', 'moves', id, status] })
  if (q.isError)
    return (
      <div className="pad-m">
        <ErrorState error={q.error} retry={() => void q.refetch()} />
      </div>
    )
  if (!q.data)
    return (
      <div className="pad-m">
        <Skeleton />
      </div>
    )
  return (
    <div className="lines panel bare scroll-xl">
      <div className="lines">
        {q.data.map((m) => (
          <div key={m.seq} className="row top text-m">
            <time className="dim w-90 fixed" dateTime={m.at} title={exact(m.at)}>
              {clock(m.at)}
            </time>
            <div className="grow">
              <span>{m.to && m.to !== m.from ? tAny(`status.${m.to}`, m.to) : tAny(`event.${m.event}`, m.event.replace(/_/g, ' '))}</span>
              {m.kernel && (
                <span className="dim">
                  {' '}
                  · {t('kernel.title')} {m.kernel.slice(0, 8)}
                </span>
              )}
              {(m.reason || m.detail) && (
                <div className="soft">{[tAny(`ended.${m.reason}`, m.reason), m.detail].filter(Boolean).join(': ')}</div>
              )}
            </div>
            {m.exitCode !== null && <span className="dim">{t('session.exit', { code: m.exitCode })}</span>}
          </div>
        ))}
      </div>
    </div>
  )
}

function About({ of: s }: { of: SessionDetail }) {
  const info = useQuery(sessionInfoQuery(s.id))
  const env = info.data ? Object.entries(JSON.parse(info.data.environ || '{}') as Record<string, string>) : []
  return (
    <div className="stack pad-m">
      <Facts
        of={[
          [
            t('col.image'),
            <Copy key="i" text={s.image}>
              {s.image}
            </Copy>,
          ],
          [t('col.resources'), slotLine(s.slots)],
          [t('about.shm'), s.opts['shmem'] ? bytes(s.opts['shmem']) : '–'],
          [t('about.group'), s.scaling_group],
          [t('about.agents'), [...new Set(s.kernels.map((k) => k.agent).filter(Boolean))].join(', ') || '–'],
          [t('about.project'), s.group_name],
          [t('col.owner'), s.user_email],
          [t('about.priority'), s.priority],
          ...(s.cluster_size > 1 ? [[t('new.cluster'), `${s.cluster_size} (${s.cluster_mode})`] as [ReactNode, ReactNode]] : []),
          ...(s.startup_command ? [[t('about.command'), <code key="c">{s.startup_command}</code>] as [ReactNode, ReactNode]] : []),
          [
            t('nav.data'),
            info.data?.vfolder_mounts.length ? (
              <span className="stack tight" key="m">
                {info.data.vfolder_mounts.map((m) => (
                  <span key={m.target}>
                    <Link to="/data/$folder" params={{ folder: m.id.replace(/-/g, '') }}>
                      {m.name}
                    </Link>{' '}
                    <code className="dim">{m.target}</code> <span className="tag">{tAny(`perm.${m.permission}`, m.permission)}</span>
                  </span>
                ))}
              </span>
            ) : (
              '–'
            ),
          ],
          ...(env.length
            ? [
                [
                  t('new.env'),
                  <span key="e" className="stack tight">
                    {env.map(([k, v]) => (
                      <code key={k}>
                        {k}={v}
                      </code>
                    ))}
                  </span>,
                ] as [ReactNode, ReactNode],
              ]
            : []),
        ]}
      />
    </div>
  )
}
