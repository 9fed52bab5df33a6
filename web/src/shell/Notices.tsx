import { Button, Popover, Switch } from '@mantine/core'
import { useQuery } from '@tanstack/react-query'
import { useNavigate } from '@tanstack/react-router'
import { useEffect, useMemo, useRef, useState } from 'react'
import { Icon } from '@/design/icons'
import { Ago, Cli } from '@/design/parts'
import { span, useNow } from '@/design/time'
import { invitationsQuery } from '@/folder/queries'
import { endedQuery, endingQuery, isUnread, lostQuery, noticesOf, readAll, type Notice, type Read } from '@/operation/notices'
import { useMe } from '@/tenancy/me'
import { t, tAny } from '@/words'

const wanted = 'berth.desktop'

function readOf(key: string): Read {
  try {
    const r = JSON.parse(localStorage.getItem(key) ?? 'null') as Read | null
    if (r && typeof r.since === 'number' && Array.isArray(r.keys)) return r
  } catch {
    // Nothing was read then.
  }
  return { since: 0, keys: [] }
}

function keep(key: string, value: string) {
  try {
    localStorage.setItem(key, value)
  } catch {
    // It holds until the page is left.
  }
}

function textOf(n: Notice, now: number): string {
  if (n.kind === 'shared') return t('notice.shared', { who: n.why, name: n.name })
  if (n.kind === 'idle') return t('notice.idle', { name: n.name, t: span(Math.max(0, (n.ends ?? now) - now)) })
  return t(`notice.${n.kind}`, { name: n.name })
}

const whyOf = (n: Notice) => (n.kind === 'shared' ? '' : tAny(`ended.${n.why}`, n.why))
const icons: Record<Notice['kind'], string> = {
  failed: 'warn',
  lost: 'warn',
  done: 'check',
  ended: 's-ended',
  idle: 's-waiting',
  shared: 'share',
}

/** What happened, with the number of what was not read yet. */
export function Notices() {
  const me = useMe()
  const go = useNavigate()
  const now = useNow(30_000)
  const ended = useQuery(endedQuery(me.email)).data
  const ending = useQuery(endingQuery(me.email)).data
  const lost = useQuery(lostQuery(me.email)).data
  const invited = useQuery(invitationsQuery).data
  const key = `berth.read.${me.uuid}`
  const [read, setRead] = useState<Read>(() => readOf(key))
  const [open, setOpen] = useState(false)
  const all = useMemo(() => noticesOf(ended ?? [], ending ?? [], invited ?? [], lost ?? [], now), [ended, ending, invited, lost, now])
  const unread = all.filter((n) => isUnread(n, read))
  const mark = () => {
    const r = readAll(all, Date.now())
    setRead(r)
    keep(key, JSON.stringify(r))
  }
  // Another tab has read them.
  useEffect(() => {
    const on = (e: StorageEvent) => {
      if (e.key === key) setRead(readOf(key))
    }
    window.addEventListener('storage', on)
    return () => window.removeEventListener('storage', on)
  }, [key])
  const follow = (n: Notice) => {
    setOpen(false)
    const r = { ...read, keys: [...read.keys, n.key].slice(-200) }
    setRead(r)
    keep(key, JSON.stringify(r))
    if (n.session) void go({ to: '/sessions/$id', params: { id: n.session } })
    else void go({ to: '/data', search: { tab: 'invitations' } })
  }
  const desktop = useDesktop(unread, !!ended && !!invited, now)
  return (
    <Popover opened={open} onChange={setOpen} position="bottom-end" width={380} trapFocus returnFocus>
      <Popover.Target>
        <button
          type="button"
          className="iconbtn"
          aria-label={t('notice.label', { n: unread.length })}
          aria-expanded={open}
          onClick={() => setOpen(!open)}>
          <Icon name="bell" />
          {unread.length > 0 && <span className="count">{unread.length}</span>}
        </button>
      </Popover.Target>
      <Popover.Dropdown p={0} aria-label={t('notice.title')}>
        <div className="row pad-line line-below">
          <strong className="grow section-title">{t('notice.title')}</strong>
          {unread.length > 0 && (
            <Button size="compact-xs" onClick={mark}>
              {t('notice.read')}
            </Button>
          )}
        </div>
        <div className="scroll-l">
          {all.length === 0 ? (
            <div className="stack pad-m">
              <strong className="section-title">{t('notice.none')}</strong>
              <p className="small soft">{t('notice.none.text')}</p>
              <Cli line="berth session events" />
            </div>
          ) : (
            all.slice(0, 40).map((n) => (
              <button key={n.key} type="button" className="notice" onClick={() => follow(n)}>
                <span className={n.kind === 'failed' || n.kind === 'lost' ? 'bad' : n.kind === 'idle' ? 'warn' : 'dim'}>
                  <Icon name={icons[n.kind]} />
                </span>
                <span className="grow">
                  <span className={isUnread(n, read) ? 'strong' : ''}>{textOf(n, now)}</span>
                  {whyOf(n) && <span className="small soft block">{whyOf(n)}</span>}
                </span>
                <span className="small dim">{n.kind !== 'idle' && <Ago at={new Date(n.at).toISOString()} />}</span>
              </button>
            ))
          )}
        </div>
        <div className="pad-line line-above">{desktop}</div>
      </Popover.Dropdown>
    </Popover>
  )
}

/** Shows what is new on the desktop while the page is not looked at. No service of others is asked: the page itself shows it. */
function useDesktop(unread: Notice[], ready: boolean, now: number) {
  const able = typeof Notification !== 'undefined' && window.isSecureContext
  const [on, setOn] = useState(() => {
    try {
      return able && Notification.permission === 'granted' && localStorage.getItem(wanted) === 'yes'
    } catch {
      return false
    }
  })
  const told = useRef<Set<string> | null>(null)
  useEffect(() => {
    if (!ready) return
    // What was there when the page began is not news.
    if (!told.current) {
      told.current = new Set(unread.map((n) => n.key))
      return
    }
    for (const n of unread) {
      if (told.current.has(n.key)) continue
      told.current.add(n.key)
      if (!on || !document.hidden) continue
      // Pages of one browser share the tag, so that several tell once.
      const shown = new Notification(textOf(n, now), { body: whyOf(n), tag: n.key, icon: '/icon-192.png' })
      shown.onclick = () => window.focus()
    }
  }, [unread, ready, on, now])
  const denied = able && Notification.permission === 'denied'
  return (
    <Switch
      size="xs"
      label={t('notice.desktop')}
      description={denied ? t('notice.desktop.denied') : t('notice.desktop.text')}
      checked={on}
      disabled={!able || denied}
      onChange={(e) => {
        const want = e.currentTarget.checked
        if (!want) {
          setOn(false)
          keep(wanted, 'no')
          return
        }
        void Notification.requestPermission().then((p) => {
          setOn(p === 'granted')
          keep(wanted, p === 'granted' ? 'yes' : 'no')
        })
      }}
    />
  )
}
