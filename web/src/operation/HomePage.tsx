import { Button } from '@mantine/core'
import { useQuery, useQueryClient } from '@tanstack/react-query'
import { Link, useNavigate } from '@tanstack/react-router'
import { useState } from 'react'
import { AppButton } from '@/app/AppButton'
import { forBrowser } from '@/app/queries'
import { slotLine, slotName } from '@/design/amounts'
import { Icon } from '@/design/icons'
import { Ago, Cli, ConfirmAction, EmptyState, ErrorState, Meter, PageHead, Panel, Skeleton, StateBadge, useTitle } from '@/design/parts'
import { foldersQuery } from '@/folder/queries'
import { ImageMark } from '@/image/ImageMark'
import { limitsQuery, type Limit } from '@/resource/queries'
import { useAgain } from '@/session/again'
import { mineQuery, recentQuery, useEnd, type Session } from '@/session/queries'
import { isAdmin, isSuper, useMe, useProject } from '@/tenancy/me'
import { t } from '@/words'
import { ForDomain } from './ForDomain'
import { ForAdministrators } from './ForAdministrators'
import { announcementQuery } from './queries'
import { Tour, useTour } from './Tour'

export function HomePage() {
  const me = useMe()
  const go = useNavigate()
  useTitle(t('nav.home'))
  const mine = useQuery(mineQuery(me.email))
  const recent = useQuery(recentQuery(me.email))
  const said = useQuery(announcementQuery).data
  const first = me.full_name.split(' ')[0] || me.username.split('@')[0] || me.email
  const sessions = mine.data?.items
  const { again, busy } = useAgain()
  const client = useQueryClient()
  const end = useEnd()
  const [ending, setEnding] = useState(false)
  const tour = useTour(mine.data?.total === 0 && recent.data?.total === 0)
  return (
    <div className="page">
      {said?.enabled && said.message && (
        <div className="note info" role="note">
          <Icon name="info" />
          <span className="lines-kept">{said.message}</span>
        </div>
      )}
      <PageHead title={t('home.hello', { name: first })}>
        <Button variant="filled" leftSection={<Icon name="plus" />} onClick={() => void go({ to: '/sessions/new' })}>
          {t('session.new')}
        </Button>
      </PageHead>
      <div className="cols">
        <div className="stack wide">
          {tour.shown && <Tour way={tour.way} change={tour.change} />}
          {/* The tour is the one thing to do for who has nothing yet. */}
          {!(tour.shown && sessions?.length === 0) && (
            <Panel
              title={t('home.mine')}
              body={false}
              acts={
                !!mine.data &&
                mine.data.total > 0 && (
                  <>
                    <Button size="compact-xs" onClick={() => setEnding(true)}>
                      {t('home.endall')}
                    </Button>
                    <Link to="/sessions" search={{ owner: 'me' }} className="small">
                      {t('home.all', { n: mine.data.total })}
                    </Link>
                  </>
                )
              }>
              {mine.isError && !sessions ? (
                <div className="body">
                  <ErrorState error={mine.error} retry={() => void mine.refetch()} />
                </div>
              ) : !sessions ? (
                <div className="body">
                  <Skeleton lines={3} h={20} />
                </div>
              ) : sessions.length === 0 ? (
                <EmptyState
                  title={t('home.none')}
                  text={t('home.none.text')}
                  cli="berth run python"
                  action={
                    <Button variant="filled" onClick={() => void go({ to: '/sessions/new' })}>
                      {t('home.none.do')}
                    </Button>
                  }
                />
              ) : (
                <div className="lines">
                  {sessions.slice(0, 8).map((s) => (
                    <Mine key={s.id} of={s} />
                  ))}
                </div>
              )}
            </Panel>
          )}
          {!!recent.data?.items.length && (
            <Panel
              title={t('home.recent')}
              body={false}
              acts={
                <Link to="/sessions" search={{ owner: 'me', status: 'ended' }} className="small">
                  {t('home.ended')}
                </Link>
              }>
              <div className="lines">
                {recent.data.items.slice(0, 6).map((s) => (
                  <div key={s.id} className="row">
                    <ImageMark name={s.image} />
                    <div className="grow">
                      <Link to="/sessions/$id" params={{ id: s.id }} className="cut block ink">
                        {s.name}
                      </Link>
                      <div className="row small dim">
                        <StateBadge status={s.status} result={s.result} plain />
                        <Ago at={s.terminated_at} />
                      </div>
                    </div>
                    <Button
                      size="compact-sm"
                      loading={busy === s.id}
                      onClick={() => again(s.id)}
                      leftSection={<Icon name="play" size={12} />}>
                      {t('session.again')}
                    </Button>
                  </div>
                ))}
              </div>
            </Panel>
          )}
        </div>
        <div className="stack wide">
          {isSuper(me) ? <ForAdministrators /> : isAdmin(me) && <ForDomain />}
          <Left />
          <Folders />
        </div>
      </div>
      <ConfirmAction
        open={ending}
        onClose={() => setEnding(false)}
        title={t('session.end.n', { n: sessions?.length ?? 0 })}
        verb={t('session.end.n', { n: sessions?.length ?? 0 })}
        doing={t('session.ending')}
        onDo={async () => {
          await end.mutateAsync((sessions ?? []).map((s) => s.id))
          await client.invalidateQueries({ queryKey: ['session'] })
        }}>
        <p>{t('session.end.loses')}</p>
        <ul className="bullets over-8 scroll-s">
          {(sessions ?? []).map((s) => (
            <li key={s.id}>{s.name}</li>
          ))}
        </ul>
      </ConfirmAction>
    </div>
  )
}

/** Folders that one can use, the latest first. */
function Folders() {
  const q = useQuery(foldersQuery)
  const mine = q.data
    ?.filter((f) => !f.status.startsWith('delete'))
    .sort((a, b) => Number(b.is_owner) - Number(a.is_owner) || b.created_at.localeCompare(a.created_at))
  return (
    <Panel
      title={t('nav.data')}
      body={false}
      acts={
        !!mine?.length && (
          <Link to="/data" className="small">
            {t('home.all', { n: mine.length })}
          </Link>
        )
      }>
      {q.isError && !mine ? (
        <div className="body">
          <ErrorState error={q.error} retry={() => void q.refetch()} />
        </div>
      ) : !mine ? (
        <div className="body">
          <Skeleton lines={2} />
        </div>
      ) : mine.length === 0 ? (
        <div className="body stack">
          <p className="small soft">{t('folder.none.text')}</p>
          <Cli line="berth folder create data" />
        </div>
      ) : (
        <div className="lines">
          {mine.slice(0, 5).map((f) => (
            <Link key={f.id} to="/data/$folder" params={{ folder: f.id }} className="row ink">
              <Icon name="folder" />
              <span className="grow cut">{f.name}</span>
              <span className="small dim">{f.is_owner ? '' : f.ownership_type === 'group' ? f.group_name : f.user_email}</span>
            </Link>
          ))}
        </div>
      )}
    </Panel>
  )
}

function Mine({ of: s }: { of: Session }) {
  const running = s.status === 'RUNNING'
  const apps = s.apps.filter(forBrowser)
  const shown = [...apps.filter((a) => a.name !== 'ttyd'), ...apps.filter((a) => a.name === 'ttyd')].slice(0, 3)
  return (
    <div className="row wrap gap-rows">
      <ImageMark name={s.image} size="large" />
      <div className="grow min-180">
        <div className="row">
          <Link to="/sessions/$id" params={{ id: s.id }} className="cut medium ink">
            {s.name}
          </Link>
          <StateBadge status={s.status} />
        </div>
        <div className="small dim">
          {slotLine(s.slots)}
          {running ? (
            <>
              {' '}
              · <Ago at={s.status_changed ?? s.created_at} />
            </>
          ) : null}
        </div>
        {s.status === 'PENDING' && s.why && <div className="small warn over-2">{s.why}</div>}
      </div>
      {running && (
        <div className="row wrap">
          {shown.map((a, i) => (
            <AppButton key={a.name} session={s.id} app={a.name} main={i === 0 && a.name !== 'ttyd'} />
          ))}
        </div>
      )}
    </div>
  )
}

/** What the person may still start, where anything bounds it. */
function Left() {
  const project = useProject()
  const q = useQuery(limitsQuery(project))
  if (q.isError)
    return (
      <Panel title={t('home.quota')}>
        <ErrorState error={q.error} retry={() => void q.refetch()} />
      </Panel>
    )
  const bounds = q.data?.filter((l) => l.kind === 'running' && l.what !== 'private sessions').map(bindingOf)
  return (
    <Panel title={t('home.quota')}>
      {!bounds ? (
        <Skeleton lines={3} />
      ) : (
        <div className="stack">
          {bounds.map(({ what, level }) => (
            <Meter
              key={what}
              slot={what === 'live sessions' ? '' : what}
              used={level?.using}
              of={level?.limit}
              label={what === 'live sessions' ? t('nav.sessions') : slotName(what)}
            />
          ))}
          <p className="small dim">{t('home.quota.why')}</p>
        </div>
      )}
    </Panel>
  )
}

function bindingOf(l: Limit) {
  return { what: l.what, level: l.levels.find((x) => x.binds) ?? l.levels[0] }
}
