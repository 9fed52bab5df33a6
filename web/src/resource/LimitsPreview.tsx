import { useQuery } from '@tanstack/react-query'
import { useState } from 'react'
import type { LimitLevel } from '@/api/types'
import { slotAmount, slotName } from '@/design/amounts'
import { Icon } from '@/design/icons'
import { ErrorState, Panel, Skeleton } from '@/design/parts'
import { among, Picker } from '@/design/Picker'
import { span } from '@/design/time'
import { useMe, useProject } from '@/tenancy/me'
import { projectsOfQuery, userChoices } from '@/tenancy/queries'
import { t, tAny } from '@/words'
import { concerns, effects, type Draft, type Effect } from './preview'
import { limitsOfQuery } from './queries'

/** What a policy that is being changed comes to for somebody, beside what holds for them now. */
export function LimitsPreview({ policy, draft }: { policy: string; draft: Draft }) {
  const me = useMe()
  const own = useProject()
  const [user, setUser] = useState(me.email)
  const [chosen, setChosen] = useState(own)
  const of = useQuery(projectsOfQuery(user))
  const projects = of.data ?? []
  const project = projects.includes(chosen) ? chosen : (projects[0] ?? '')
  const q = useQuery({ ...limitsOfQuery(user, project), enabled: project !== '' })
  return (
    <Panel title={t('preview.title')}>
      <div className="stack">
        <p className="small soft">{t('preview.text')}</p>
        <div className="row wrap top">
          <Picker size="xs" className="grow" label={t('preview.user')} of={userChoices} value={user} onChange={(v) => setUser(v ?? user)} />
          <Picker
            size="xs"
            className="grow"
            label={t('preview.project')}
            of={among('projects of a user', projects)}
            value={project || null}
            onChange={(v) => setChosen(v ?? project)}
          />
        </div>
        {of.isError ? (
          <ErrorState error={of.error} retry={() => void of.refetch()} />
        ) : of.data?.length === 0 ? (
          <p className="dim">{t('preview.nowhere')}</p>
        ) : q.isError ? (
          <ErrorState error={q.error} retry={() => void q.refetch()} />
        ) : !q.data ? (
          <Skeleton lines={4} />
        ) : (
          <>
            {!concerns(q.data, policy) && (
              <div className="note info">
                <Icon name="info" />
                <span>{t('preview.foreign', { name: policy })}</span>
              </div>
            )}
            <Effects of={effects(q.data, policy, draft)} />
          </>
        )}
      </div>
    </Panel>
  )
}

function Effects({ of }: { of: Effect[] }) {
  return (
    <table className="plain">
      <thead>
        <tr>
          <th scope="col">{t('import.what')}</th>
          <th scope="col" className="num">
            {t('preview.now')}
          </th>
          <th scope="col" className="num">
            {t('preview.then')}
          </th>
          <th scope="col">{t('preview.by')}</th>
        </tr>
      </thead>
      <tbody>
        {of.map((e) => (
          <tr key={`${e.kind} ${e.what}`} className={e.changed ? 'changed' : ''}>
            <th scope="row">{nameOf(e)}</th>
            <td className="num">{limitText(e.what, e.now)}</td>
            <td className="num">
              {limitText(e.what, e.then)}
              {e.over !== null && <span className="waits"> ({t('preview.over', { n: slotAmount(e.what, e.over) })})</span>}
            </td>
            <td className="soft">{e.then ? setBy(e.then) : '–'}</td>
          </tr>
        ))}
      </tbody>
    </table>
  )
}

function limitText(what: string, l: LimitLevel | null): string {
  if (!l || l.limit === 'Infinity') return t('policy.nolimit')
  return what.includes('seconds') ? span(Number(l.limit) * 1000) : slotAmount(what, l.limit)
}

function setBy(l: LimitLevel): string {
  const level = tAny(`level.${l.level}`, l.level)
  return l.policy ? t('preview.policy', { level, policy: l.policy }) : `${level} ${l.name ?? ''}`
}

function nameOf(e: Effect): string {
  const what = tAny(`what.${e.what}`, slotName(e.what))
  if (e.kind === 'waiting' && !e.what.startsWith('waiting')) return t('kind.waiting', { what })
  return what
}
