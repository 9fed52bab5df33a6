import { QueryClient } from '@tanstack/react-query'
import { afterEach, expect, test, vi } from 'vitest'
import { answering } from '../../test/wrap'
import type { Session } from '@/session/queries'
import { failing } from '@/session/ends'
import { catalogue } from '@/words/catalogue'
import { isUnread, lostQuery, noticesOf, readAll } from './notices'

afterEach(() => vi.unstubAllGlobals())

const now = Date.parse('2026-11-27T12:00:00Z')
const ended = (part: Partial<Session>) =>
  ({
    id: 's',
    name: 'job',
    type: 'batch',
    status: 'TERMINATED',
    result: 'SUCCESS',
    why: 'task-done',
    terminated_at: '2026-11-27T11:00:00Z',
    ...part,
  }) as Session

test('what ended is told with why, but not what one ended oneself or long ago', () => {
  const all = noticesOf(
    [
      ended({ id: '1' }),
      ended({ id: '2', status: 'ERROR', why: 'failed-to-start' }),
      ended({ id: '3', why: 'user-requested' }),
      ended({ id: '4', terminated_at: '2026-10-01T00:00:00Z' }),
      ended({ id: '5', type: 'interactive', why: 'idle-timeout', result: 'UNDEFINED' }),
      ended({ id: '6', terminated_at: null }),
      ended({ id: '7', why: 'force-terminated' }),
      ended({ id: '8', type: 'interactive', why: 'admin-terminated' }),
      ended({ id: '9', status: 'CANCELLED', why: 'failed-to-pull' }),
    ],
    [],
    [],
    [],
    now,
  )
  expect(all.map((n) => [n.session, n.kind, n.why])).toEqual([
    ['1', 'done', 'task-done'],
    ['2', 'failed', 'failed-to-start'],
    ['5', 'ended', 'idle-timeout'],
    ['8', 'ended', 'admin-terminated'],
    ['9', 'failed', 'failed-to-pull'],
  ])
})

test('a session is about to end only when it is', () => {
  const at = (ends_at: string | null) => noticesOf([], [{ id: 'x', name: 'lab', ends_at, why: 'nobody' }], [], [], now)
  expect(at('2026-11-27T12:10:00Z')).toMatchObject([{ kind: 'idle', session: 'x' }])
  expect([at('2026-11-27T14:00:00Z'), at(null), at('2026-11-27T11:00:00Z')]).toEqual([[], [], []])
})

test('what was read stays read, and what comes later is new', () => {
  const all = noticesOf([ended({})], [{ id: 'x', name: 'lab', ends_at: '2026-11-27T12:10:00Z', why: '' }], [], [], now)
  expect(all.filter((n) => isUnread(n, { since: 0, keys: [] }))).toHaveLength(2)
  const read = readAll(all, now)
  expect(all.filter((n) => isUnread(n, read))).toEqual([])
  const later = noticesOf([ended({ id: 'new', terminated_at: '2026-11-27T12:30:00Z' })], [], [], [], now + 3_600_000)
  expect(isUnread(later[0]!, read)).toBe(true)
})

test('a session that lost a device is told of while it runs, since its history says so', async () => {
  const held = (healthy?: boolean) => ({ slot: 'cuda.device', id: 'GPU-0', amount: '1', ...(healthy === undefined ? {} : { healthy }) })
  const of = (sessionId: string, devices: unknown[]) => ({ sessionId, sessionName: sessionId, userEmail: 'a@x', kernels: [{ devices }] })
  const asked = answering((a) => {
    if (a.url.includes('/session-devices'))
      return { sessions: [of('well', [held(true)]), of('gone', [held()]), of('ill', [held(true), held(false)]), of('soon', [held(false)])] }
    const moves = [{ seq: 3, event: 'session_device_lost', at: '2026-11-27T11:50:00Z' }]
    return { moves: a.url.includes('/session/ill/') ? moves : [{ seq: 1, event: 'session_started', at: '2026-11-27T11:00:00Z' }] }
  })
  const lost = await new QueryClient().fetchQuery(lostQuery('a@x'))
  expect(asked.map((a) => a.url).filter((u) => u.includes('status-history')).length).toBe(2)
  const all = noticesOf([], [], [], lost, now)
  expect(all).toEqual([
    { key: 'lost:ill:3', kind: 'lost', name: 'ill', why: 'device-lost', at: Date.parse('2026-11-27T11:50:00Z'), session: 'ill' },
  ])
  expect(isUnread(all[0]!, { since: 0, keys: [] })).toBe(true)
})

test('every reason of a failure has words', () => {
  for (const r of failing) expect(catalogue, r).toHaveProperty([`ended.${r}`])
})
