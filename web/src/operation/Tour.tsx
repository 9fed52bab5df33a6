import { Button } from '@mantine/core'
import { useQuery, useQueryClient } from '@tanstack/react-query'
import { Link } from '@tanstack/react-router'
import { useState, type ReactNode } from 'react'
import { AppButton, appTitle } from '@/app/AppButton'
import { Icon } from '@/design/icons'
import { Cli, ErrorState, StateBadge } from '@/design/parts'
import { isOver } from '@/design/state'
import { createFolder, foldersQuery } from '@/folder/queries'
import { imageChoicesQuery, imageQuery, referenceOf } from '@/image/queries'
import { presetsQuery } from '@/resource/queries'
import { bodyOf, blank, nameFor, slotsOf } from '@/session/draft'
import { createSession, sessionQuery } from '@/session/queries'
import { useMe, useProject } from '@/tenancy/me'
import { t } from '@/words'
import { firstImage, notebookOf } from './notebook'

interface Way {
  over?: boolean
  session?: string
}

function read(key: string): Way {
  try {
    return JSON.parse(localStorage.getItem(key) ?? '{}') as Way
  } catch {
    return {}
  }
}

/** Whether a person is new here, or on the way. Who has had sessions knows the way. */
export function useTour(first: boolean) {
  const me = useMe()
  const key = `berth.tour.${me.uuid}`
  const [way, set] = useState<Way>(() => read(key))
  const change = (w: Way) => {
    set(w)
    try {
      localStorage.setItem(key, JSON.stringify(w))
    } catch {
      // It begins again with the next page.
    }
  }
  return { shown: !way.over && (first || !!way.session), way, change }
}

/** The first visit: three steps that end in a notebook that runs. */
export function Tour({ way, change }: { way: Way; change: (w: Way) => void }) {
  const me = useMe()
  const project = useProject()
  const client = useQueryClient()
  const folders = useQuery(foldersQuery).data
  const choices = useQuery(imageChoicesQuery('')).data?.items
  const usual = useQuery({ ...imageQuery('python'), retry: false })
  const presets = useQuery(presetsQuery(project)).data
  const session = useQuery({ ...sessionQuery(way.session ?? ''), enabled: !!way.session }).data
  const [busy, setBusy] = useState(false)
  const [error, setError] = useState<unknown>(null)
  const folder = folders?.find((f) => f.is_owner && f.ownership_type === 'user' && f.status === 'ready')
  const known = !!choices && !usual.isPending
  const image = known ? firstImage(usual.data, choices) : undefined
  const app = image ? notebookOf(image)! : ''
  const doing = (what: () => Promise<unknown>) => {
    if (busy) return
    setBusy(true)
    setError(null)
    what()
      .catch(setError)
      .finally(() => setBusy(false))
  }
  const name = `${
    (me.username || me.email)
      .split('@')[0]!
      .replace(/[^A-Za-z0-9_-]/g, '')
      .slice(0, 24) || 'my'
  }-work`
  const makeFolder = () =>
    doing(async () => {
      await createFolder({ name })
      await client.invalidateQueries({ queryKey: ['folder'] })
    })
  const start = () =>
    doing(async () => {
      const p =
        presets?.presets.find((x) => x.name === 'small' && x.allocatable) ??
        presets?.presets.find((x) => x.allocatable) ??
        presets?.presets[0]
      const made = await createSession(
        bodyOf(
          {
            ...blank,
            name: nameFor(Math.random()),
            image: referenceOf(image!),
            architecture: image!.architecture,
            slots: slotsOf(p?.resource_slots ?? {}),
            mounts: folder ? [{ id: folder.id, name: folder.name, target: '' }] : [],
          },
          project,
        ),
      )
      change({ session: made.sessionId })
      await client.invalidateQueries({ queryKey: ['session'] })
    })
  const lost = !!way.session && (session === null || (!!session && isOver(session.status)))
  const has = !!way.session && !lost
  const running = has && session?.status === 'RUNNING'
  const title = image ? (image.humanized_name || image.name).replace(/^berth\//, '') : ''
  return (
    <section className="panel" aria-label={t('tour.title')}>
      <header>
        <h2 className="grow">{t('tour.title')}</h2>
        <Button size="compact-sm" onClick={() => change({ ...way, over: true })}>
          {running ? t('tour.end') : t('tour.skip')}
        </Button>
      </header>
      <ol className="lines tour">
        <Step n={1} done={!!folder} title={t('tour.1')} text={folder ? folder.name : t('tour.1.text')} cli={`berth folder create ${name}`}>
          {!folder && folders && (
            <Button variant="filled" loading={busy} onClick={makeFolder}>
              {t('tour.1.do', { name })}
            </Button>
          )}
        </Step>
        <Step
          n={2}
          done={has}
          title={t('tour.2')}
          text={known && !image ? t('tour.noimage') : t('tour.2.text', { image: title })}
          cli={`berth session create ${image ? referenceOf(image) : 'IMAGE'}${folder ? ` -v ${folder.name}` : ''}`}>
          {has && session ? (
            <span className="row">
              <Link to="/sessions/$id" params={{ id: session.id }}>
                {session.name}
              </Link>
              <StateBadge status={session.status} />
            </span>
          ) : (
            !!folder &&
            image && (
              <Button variant="filled" loading={busy} onClick={start}>
                {t('tour.2.do', { image: title })}
              </Button>
            )
          )}
        </Step>
        <Step
          n={3}
          done={false}
          title={t('tour.3')}
          text={running ? t('tour.3.text', { app: appTitle(app), folder: folder?.name ?? '' }) : t('tour.3.wait')}
          cli={`berth app open ${session?.name ?? 'SESSION'} ${app || 'jupyter'}`}>
          {running && app && <AppButton session={session.id} app={app} main />}
        </Step>
      </ol>
      {error !== null && (
        <div className="pad-m">
          <ErrorState error={error} />
        </div>
      )}
    </section>
  )
}

function Step({
  n,
  done,
  title,
  text,
  cli,
  children,
}: {
  n: number
  done: boolean
  title: string
  text: string
  cli: string
  children?: ReactNode
}) {
  return (
    <li className="row wrap gap-rows">
      <span className={`stepmark${done ? ' done' : ''}`} {...(done ? { role: 'img', 'aria-label': t('tour.done') } : {})}>
        {done ? <Icon name="check" size={14} /> : n}
      </span>
      <div className="grow min-220">
        <strong className="strong">{title}</strong>
        <div className="small soft">{text}</div>
        <div className="over-8 max-420">
          <Cli line={cli} />
        </div>
      </div>
      {children}
    </li>
  )
}
