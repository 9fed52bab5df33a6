import { Menu, Modal, Tooltip, useMantineColorScheme } from '@mantine/core'
import { useQuery, useQueryClient } from '@tanstack/react-query'
import { Link, Outlet, useLocation, useNavigate } from '@tanstack/react-router'
import { Fragment, useEffect, useMemo, useRef, useState } from 'react'
import { hear, useLink } from '@/api/live'
import { useNarrow } from '@/design/DataTable'
import { Icon } from '@/design/icons'
import { KeyHint, toast } from '@/design/parts'
import { span, useNow } from '@/design/time'
import { flush } from '@/folder/unfinished'
import { Uploads } from '@/folder/Uploads'
import { healthQuery } from '@/operation/queries'
import { forgetWork, logout } from '@/tenancy/login'
import { chooseProject, isSuper, useMe, useProject } from '@/tenancy/me'
import { setLanguage, t, useLanguage, type Word } from '@/words'
import { Mark } from './Gate'
import { useKeys } from './keys'
import { Notices } from './Notices'
import { Palette } from './Palette'
import { barOf, placesOf, type Place } from './places'
import './shell.css'

/** Events after which there may be something to tell. */
const ends = [
  'session_terminated',
  'session_failure',
  'session_success',
  'session_cancelled',
  'session_idle_warning',
  'session_device_lost',
]

export function Shell() {
  const lang = useLanguage()
  const me = useMe()
  const client = useQueryClient()
  const go = useNavigate()
  const where = useLocation()
  const [palette, setPalette] = useState(false)
  const [sheet, setSheet] = useState(false)
  const [folded, setFolded] = useState(() => read('berth.folded') === 'yes')
  const { colorScheme, setColorScheme } = useMantineColorScheme()
  const main = useRef<HTMLElement>(null)
  const places = placesOf(me)
  const narrow = useNarrow()
  const [first, rest] = barOf(places)

  useEffect(() => {
    let later: ReturnType<typeof setTimeout> | undefined
    const stop = hear((h) => {
      if (ends.includes(h.event))
        later ??= setTimeout(() => {
          later = undefined
          void client.invalidateQueries({ queryKey: ['operation', 'ended'] })
        }, 1000)
      if (h.event === 'session_idle_warning') {
        toast(
          t('live.idle', { name: h.sessionName, detail: h.detail }),
          { label: t('do.open'), run: () => void go({ to: '/sessions/$id', params: { id: h.sessionId } }) },
          20_000,
        )
      } else if (h.event === 'session_device_lost') {
        void client.invalidateQueries({ queryKey: ['operation', 'lost'] })
        toast(
          t('live.device', { name: h.sessionName, detail: h.detail }),
          { label: t('do.open'), run: () => void go({ to: '/sessions/$id', params: { id: h.sessionId } }) },
          20_000,
        )
      } else if (h.event === 'session_failure') {
        toast(
          t('live.failed', { name: h.sessionName }),
          { label: t('do.open'), run: () => void go({ to: '/sessions/$id', params: { id: h.sessionId } }) },
          12_000,
        )
      }
    })
    return () => {
      clearTimeout(later)
      stop()
    }
  }, [client, go])
  // A new page begins at its top, and the keyboard with it.
  useEffect(() => {
    main.current?.scrollTo(0, 0)
  }, [where.pathname])

  const table = useMemo(() => {
    const out: Record<string, () => void> = {
      'mod+k': () => setPalette(true),
      '?': () => setSheet(true),
      n: () => void go({ to: '/sessions/new' }),
      '/': () => document.querySelector<HTMLInputElement>('main input[type="search"]')?.focus(),
    }
    for (const p of placesOf(me)) if (p.keys) out[p.keys] = () => void go({ to: p.to as '/' })
    return out
  }, [me, go])
  useKeys(table)

  const leave = async () => {
    await logout().catch(() => {})
    flush()
    forgetWork()
    // Until the page is gone it is drawn again by events; without its data it would ask for it, as nobody.
    window.addEventListener('pagehide', () => client.clear(), { once: true })
    location.assign('/')
  }
  const theme = (s: 'light' | 'dark' | 'auto') => setColorScheme(s)
  const actions = [
    { key: 'new', label: t('session.new'), icon: 'plus', keys: 'n', run: () => void go({ to: '/sessions/new' }) },
    { key: 'folder', label: t('folder.new'), icon: 'folder', run: () => void go({ to: '/data', search: { make: true } }) },
    { key: 'profile', label: t('nav.profile'), icon: 'user', run: () => void go({ to: '/profile' }) },
    { key: 'dark', label: t('theme.dark'), icon: 'sun', run: () => theme('dark') },
    { key: 'light', label: t('theme.light'), icon: 'sun', run: () => theme('light') },
    { key: 'lang', label: lang === 'en' ? '한국어' : 'English', icon: 'user', run: () => setLanguage(lang === 'en' ? 'ko' : 'en') },
    { key: 'keys', label: t('keys.title'), icon: 'info', keys: '?', run: () => setSheet(true) },
    { key: 'logout', label: t('login.out'), icon: 'close', run: () => void leave() },
  ]
  return (
    <div className={`shell${folded ? ' folded' : ''}`}>
      <a className="skip" href="#main">
        {t('nav.skip')}
      </a>
      <LinkBar />
      <nav aria-label={t('nav.label')}>
        <Link to="/" className="brand">
          <Mark />
          <span>Berth</span>
        </Link>
        {(narrow ? first : places).map((p, i) => (
          <Fragment key={p.to}>
            {p.group === 'admin' && places[i - 1]?.group === 'main' && <hr />}
            <Tooltip label={t(p.word)} position="right" disabled={!folded || narrow}>
              <Link
                to={p.to as '/'}
                className="item"
                activeProps={{ className: 'item active', 'aria-current': 'page' }}
                activeOptions={{ exact: p.to === '/' }}>
                <Icon name={p.icon} />
                <span>{t(p.word)}</span>
              </Link>
            </Tooltip>
          </Fragment>
        ))}
        {narrow && rest.length > 0 && <More places={rest} at={where.pathname} />}
        <button
          type="button"
          className="iconbtn foot to-foot self-start"
          aria-label={t('nav.fold')}
          onClick={() => {
            setFolded(!folded)
            write('berth.folded', folded ? 'no' : 'yes')
          }}>
          <Icon name="fold" />
        </button>
      </nav>
      <header className="top">
        <Crumbs />
        <button type="button" className="find" onClick={() => setPalette(true)} aria-label={t('palette.label')}>
          <Icon name="search" size={14} />
          <span className="grow to-left">{t('palette.short')}</span>
          <KeyHint keys={mac ? '⌘K' : 'Ctrl+K'} />
        </button>
        <Project />
        <Health />
        <Notices />
        <Menu position="bottom-end" width={220}>
          <Menu.Target>
            <button type="button" className="iconbtn" aria-label={t('nav.me')}>
              <Icon name="user" />
            </button>
          </Menu.Target>
          <Menu.Dropdown>
            <Menu.Label>
              <span className="cut block">{me.full_name || me.email}</span>
              <span className="small">{me.email}</span>
            </Menu.Label>
            <Menu.Item onClick={() => void go({ to: '/profile' })}>{t('nav.profile')}</Menu.Item>
            <Menu.Item onClick={() => setSheet(true)} rightSection={<KeyHint keys="?" />}>
              {t('keys.title')}
            </Menu.Item>
            <Menu.Divider />
            {(['auto', 'light', 'dark'] as const).map((s) => (
              <Menu.Item key={s} onClick={() => theme(s)} rightSection={colorScheme === s ? <Icon name="check" size={14} /> : null}>
                {t(`theme.${s}` as Word)}
              </Menu.Item>
            ))}
            <Menu.Divider />
            <Menu.Item onClick={() => setLanguage(lang === 'en' ? 'ko' : 'en')}>{lang === 'en' ? '한국어' : 'English'}</Menu.Item>
            <Menu.Item onClick={() => void leave()}>{t('login.out')}</Menu.Item>
          </Menu.Dropdown>
        </Menu>
      </header>
      <main id="main" ref={main} tabIndex={-1}>
        <Outlet />
      </main>
      <Palette open={palette} onClose={() => setPalette(false)} actions={actions} />
      <Modal opened={sheet} onClose={() => setSheet(false)} title={t('keys.title')}>
        <dl className="facts facts-keys">
          {(
            [
              [t('palette.label'), mac ? '⌘K' : 'Ctrl+K'],
              [t('session.new'), 'n'],
              [t('keys.search'), '/'],
              ...places.filter((p) => p.keys).map((p) => [t('keys.go', { to: t(p.word) }), p.keys!]),
              [t('keys.rows'), 'j k'],
              [t('keys.select'), 'x'],
              [t('keys.openrow'), 'Enter'],
              [t('keys.peek'), 'Space'],
              [t('keys.submit'), mac ? '⌘Enter' : 'Ctrl+Enter'],
              [t('keys.this'), '?'],
            ] as [string, string][]
          ).map(([what, keys]) => [
            <dt key={what}>{what}</dt>,
            <dd className="num" key={what + keys}>
              <KeyHint keys={keys} />
            </dd>,
          ])}
        </dl>
      </Modal>
      <Uploads />
    </div>
  )
}

const mac = typeof navigator !== 'undefined' && /Mac|iPhone|iPad/.test(navigator.platform)

function read(key: string): string {
  try {
    return localStorage.getItem(key) ?? ''
  } catch {
    return ''
  }
}
function write(key: string, value: string) {
  try {
    localStorage.setItem(key, value)
  } catch {
    // It holds until the page is left.
  }
}

/** The places that the bar of a narrow screen has no room for. */
export function More({ places, at }: { places: Place[]; at: string }) {
  const go = useNavigate()
  const here = places.find((p) => at.startsWith(p.to))
  return (
    <Menu position="top-end" width={220}>
      <Menu.Target>
        <button type="button" className={`item${here ? ' active' : ''}`}>
          <Icon name="more" />
          <span>{t('nav.more')}</span>
        </button>
      </Menu.Target>
      <Menu.Dropdown>
        {places.map((p) => (
          <Menu.Item
            key={p.to}
            leftSection={<Icon name={p.icon} />}
            aria-current={p === here ? 'page' : undefined}
            onClick={() => void go({ to: p.to as '/' })}>
            {t(p.word)}
          </Menu.Item>
        ))}
      </Menu.Dropdown>
    </Menu>
  )
}

/** Says since when the cluster is out of reach. Short breaks are not worth a word. */
function LinkBar() {
  const link = useLink()
  const now = useNow(1000)
  const away = now - link.since
  if (link.up || away < 1500) return null
  return (
    <div className="link" role="status">
      {t('link.away', { t: span(away) })}
    </div>
  )
}

const crumbWords: Record<string, Word> = {
  sessions: 'nav.sessions',
  new: 'session.new',
  data: 'nav.data',
  images: 'nav.images',
  templates: 'nav.templates',
  profile: 'nav.profile',
  cluster: 'nav.cluster',
  users: 'nav.users',
  projects: 'nav.projects',
  import: 'import.title',
  keypairs: 'nav.keypairs',
  policies: 'nav.policies',
  offers: 'nav.resources',
  usage: 'nav.usage',
  audit: 'nav.audit',
  settings: 'nav.settings',
  design: 'nav.design',
}

function Crumbs() {
  const parts = useLocation()
    .pathname.split('/')
    .filter((p) => p && p !== 'admin')
  const admin = useLocation().pathname.startsWith('/admin')
  if (parts.length === 0)
    return (
      <div className="crumbs">
        <span>{t('nav.home')}</span>
      </div>
    )
  return (
    <nav className="crumbs" aria-label={t('nav.crumbs')}>
      {parts.map((p, i) => {
        const word = crumbWords[p]
        const last = i === parts.length - 1
        // What has a name of its own says it in its title.
        if (!word) return null
        return (
          <span key={p} className="row">
            {i > 0 && <span aria-hidden="true">/</span>}
            {last ? <span>{t(word)}</span> : <Link to={((admin ? '/admin/' : '/') + p) as '/'}>{t(word)}</Link>}
          </span>
        )
      })}
    </nav>
  )
}

function Project() {
  const me = useMe()
  const project = useProject()
  if (me.groups.length < 2) return null
  return (
    <Menu position="bottom-end">
      <Menu.Target>
        <button type="button" className="iconbtn wide-only" aria-label={t('nav.project')}>
          {project}
          <Icon name="down" size={10} />
        </button>
      </Menu.Target>
      <Menu.Dropdown>
        <Menu.Label>{t('nav.project')}</Menu.Label>
        {me.groups.map((g) => (
          <Menu.Item
            key={g.id}
            onClick={() => chooseProject(g.name)}
            rightSection={g.name === project ? <Icon name="check" size={14} /> : null}>
            {g.name}
          </Menu.Item>
        ))}
      </Menu.Dropdown>
    </Menu>
  )
}

function Health() {
  const me = useMe()
  const go = useNavigate()
  const link = useLink()
  const h = useQuery({ ...healthQuery(isSuper(me)), refetchInterval: 30_000 })
  const state = !link.up || h.isError ? 'failed' : h.data === undefined ? '' : h.data.length ? 'waiting' : 'ok'
  if (!state) return null
  const word =
    state === 'failed' ? t('health.away') : state === 'waiting' ? t('health.problems', { n: h.data?.length ?? 0 }) : t('health.ok')
  return (
    <button
      type="button"
      className="iconbtn"
      onClick={() => {
        if (isSuper(me)) void go({ to: '/admin/cluster' })
      }}
      aria-label={t('health.label', { word })}>
      <span className={`dot ${state}`} />
      <span className="wide-only">{word}</span>
    </button>
  )
}
