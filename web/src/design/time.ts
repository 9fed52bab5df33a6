import { useSyncExternalStore } from 'react'
import { currentLanguage, t } from '@/words'

function locale(): string {
  return currentLanguage() === 'ko' ? 'ko-KR' : 'en-GB'
}

/** Milliseconds of an instant of the wire; null where there is none. */
export function instant(s: string | null | undefined): number | null {
  if (!s || s.startsWith('0001-')) return null
  const v = Date.parse(s)
  return Number.isNaN(v) ? null : v
}

/** A length of time in two units at most: "3 h 20 min". */
export function span(ms: number): string {
  const s = Math.max(0, Math.round(ms / 1000))
  const ko = currentLanguage() === 'ko'
  const u = ko ? ['초', '분', '시간', '일'] : [' s', ' min', ' h', ' d']
  if (s < 1) return ms < 1 ? '0' + u[0] : (ms / 1000).toFixed(1) + u[0]
  if (s < 60) return s + u[0]!
  if (s < 3600) return Math.floor(s / 60) + u[1]! + (s < 600 && s % 60 ? ' ' + (s % 60) + u[0] : '')
  if (s < 86400) return Math.floor(s / 3600) + u[2]! + (Math.floor((s % 3600) / 60) ? ' ' + Math.floor((s % 3600) / 60) + u[1] : '')
  return Math.floor(s / 86400) + u[3]! + (Math.floor((s % 86400) / 3600) ? ' ' + Math.floor((s % 86400) / 3600) + u[2] : '')
}

/** An instant seen from now: "3 min ago", "in 2 h". */
export function relative(s: string | null | undefined, now: number): string {
  const at = instant(s)
  if (at === null) return '–'
  const d = now - at
  if (Math.abs(d) < 5000) return t('time.now')
  const coarse = (x: number) =>
    span(x >= 60000 ? Math.floor(x / 60000) * 60000 : x).replace(/ (\d+ ?(?:min|분))$/, (m) => (x > 36e5 * 6 ? '' : m))
  return d > 0 ? t('time.ago', { t: coarse(d) }) : t('time.in', { t: coarse(-d) })
}

/** An instant in full, with the zone. */
export function exact(s: string | null | undefined): string {
  const at = instant(s)
  if (at === null) return ''
  return new Date(at).toLocaleString(locale(), { dateStyle: 'medium', timeStyle: 'long' })
}

export function clock(s: string | null | undefined): string {
  const at = instant(s)
  if (at === null) return '–'
  const d = new Date(at)
  const today = new Date().toDateString() === d.toDateString()
  return d.toLocaleString(
    locale(),
    today
      ? { hour: '2-digit', minute: '2-digit', second: '2-digit' }
      : { month: 'short', day: 'numeric', hour: '2-digit', minute: '2-digit' },
  )
}

/** The present, once in so many milliseconds. */
export function useNow(every = 10_000): number {
  const clock = clockOf(every)
  return useSyncExternalStore(clock.follow, clock.now)
}

interface Clock {
  follow: (l: () => void) => () => void
  now: () => number
}
const clocks = new Map<number, Clock>()

// All that show times share a clock: a long table would have hundreds of timers.
function clockOf(every: number): Clock {
  const known = clocks.get(every)
  if (known) return known
  const listeners = new Set<() => void>()
  let now = Date.now()
  let timer: ReturnType<typeof setInterval> | undefined
  const made: Clock = {
    now: () => now,
    follow: (l) => {
      if (listeners.size === 0) {
        now = Date.now()
        timer = setInterval(() => {
          now = Date.now()
          for (const each of listeners) each()
        }, every)
      }
      listeners.add(l)
      return () => {
        listeners.delete(l)
        if (listeners.size === 0) clearInterval(timer)
      }
    },
  }
  clocks.set(every, made)
  return made
}
