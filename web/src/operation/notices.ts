import { queryOptions } from '@tanstack/react-query'
import { func } from '@/api/http'
import type { Invitation } from '@/folder/queries'
import { isFailedEnd, isOwnEnd } from '@/session/ends'
import { listSessions, type Move, type Session } from '@/session/queries'
import type { Top } from '@/api/types'
import { instant } from '@/design/time'

// Notifications follow from what is there: sessions that ended, that end soon or lost a device, and invitations. Nothing of them is lost while no page
// is open, and a browser only remembers what was read.

export interface Notice {
  key: string
  kind: 'failed' | 'lost' | 'done' | 'ended' | 'idle' | 'shared'
  name: string
  /** Why it ended, or who shares. */
  why: string
  at: number
  session?: string
  /** For what ends soon: when. */
  ends?: number
}

export interface Idle {
  id: string
  name: string
  ends_at: string | null
  why: string
}

interface RawReport {
  sessions: {
    session_id: string
    session_name: string
    user_email: string
    idle_checks: Record<string, { ends_at: string | null; why: string; dry_run: boolean }>
  }[]
}

/** Before this long a session that nobody uses is news. */
export const soon = 15 * 60_000
const oldest = 14 * 86_400_000

// Neither key begins with the noun of sessions: on a large cluster an administrator hears of sessions all the time, and these answers are
// dear. The frame asks again when a session ended, once for many.
export const endingQuery = (me: string) =>
  queryOptions({
    queryKey: ['operation', 'ending', me],
    refetchInterval: 60_000,
    queryFn: async (): Promise<Idle[]> =>
      (await func<RawReport>('/resource/idle-report')).sessions
        .filter((s) => s.user_email === me)
        .map((s) => {
          const first = Object.values(s.idle_checks ?? {})
            .filter((c) => c.ends_at && !c.dry_run)
            .sort((a, b) => (instant(a.ends_at) ?? 0) - (instant(b.ends_at) ?? 0))[0]
          return { id: s.session_id, name: s.session_name, ends_at: first?.ends_at ?? null, why: first?.why ?? '' }
        }),
  })

export const endedQuery = (me: string) =>
  queryOptions({
    queryKey: ['operation', 'ended', me],
    refetchInterval: 120_000,
    queryFn: async ({ signal }) => (await listSessions({ owner: 'me', status: 'ended', order: '-terminated_at' }, me, 30, 0, signal)).items,
  })

/** A device of a running session that broke. */
export interface Lost {
  id: string
  name: string
  /** which of its history tells of it */
  seq: number
  at: string
}

/** So many sessions with broken devices are looked at. */
const mostLost = 8

/** What runs of one's own and lost a device: it goes on, but not as it should. Its history says since when. */
export const lostQuery = (me: string) =>
  queryOptions({
    queryKey: ['operation', 'lost', me],
    refetchInterval: 120_000,
    queryFn: async ({ signal }): Promise<Lost[]> => {
      const top = await func<Top>('/resource/session-devices', { signal })
      const broken = top.sessions.filter((s) => s.kernels.some((k) => k.devices.some((d) => d.healthy === false))).slice(0, mostLost)
      const told = await Promise.all(
        broken.map(async (s) => {
          const { moves } = await func<{ moves: Move[] }>(`/session/${s.sessionId}/status-history`, { signal })
          const last = moves.filter((m) => m.event === 'session_device_lost').pop()
          return last ? { id: s.sessionId, name: s.sessionName, seq: last.seq, at: last.at } : null
        }),
      )
      return told.filter((l) => l !== null)
    },
  })

/** All that is worth telling, the newest first. What somebody ended themselves is not. */
export function noticesOf(ended: Session[], ending: Idle[], invited: Invitation[], lost: Lost[], now: number): Notice[] {
  const out: Notice[] = []
  for (const s of ended) {
    const at = instant(s.terminated_at)
    if (at === null || now - at > oldest || isOwnEnd(s.why)) continue
    out.push({
      key: `end:${s.id}`,
      kind: isFailedEnd(s) ? 'failed' : s.type.toLowerCase() === 'batch' ? 'done' : 'ended',
      name: s.name,
      why: s.why,
      at,
      session: s.id,
    })
  }
  for (const i of ending) {
    const ends = instant(i.ends_at)
    if (ends === null || ends - now > soon || ends < now - 60_000) continue
    out.push({
      key: `idle:${i.id}:${Math.round(ends / 300_000)}`,
      kind: 'idle',
      name: i.name,
      why: i.why,
      at: ends - soon,
      session: i.id,
      ends,
    })
  }
  for (const l of lost)
    out.push({ key: `lost:${l.id}:${l.seq}`, kind: 'lost', name: l.name, why: 'device-lost', at: instant(l.at) ?? now, session: l.id })
  for (const i of invited)
    out.push({ key: `inv:${i.id}`, kind: 'shared', name: i.vfolder_name, why: i.inviter, at: instant(i.created_at) ?? now })
  return out.sort((a, b) => b.at - a.at)
}

/** What a browser remembers: what was read, and since when. */
export interface Read {
  since: number
  keys: string[]
}

export const isUnread = (n: Notice, read: Read) =>
  !read.keys.includes(n.key) && (n.kind === 'idle' || n.kind === 'shared' || n.at > read.since)
export const readAll = (all: Notice[], now: number): Read => ({ since: now, keys: all.map((n) => n.key) })
