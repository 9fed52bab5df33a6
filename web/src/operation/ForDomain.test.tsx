import { createMemoryHistory, createRootRoute, createRouter, RouterProvider } from '@tanstack/react-router'
import { screen, waitFor } from '@testing-library/react'
import { Suspense } from 'react'
import { afterEach, beforeEach, expect, test, vi } from 'vitest'
import { answering, refusing, show, type Asked } from '../../test/wrap'
import { ForDomain } from './ForDomain'

beforeEach(() => vi.stubGlobal('scrollTo', () => {}))
afterEach(() => vi.unstubAllGlobals())

const me = { email: 'chief@example.org', role: 'admin', domain_name: 'physics', groups: [] }
const waiting = {
  id: 'w',
  name: 'training',
  user_email: 'ada@example.org',
  created_at: '2026-01-01T10:00:00Z',
  status: 'PENDING',
  status_info: '',
}
const usage = (rows: unknown[]) => ({ by: 'user', rows })

function page() {
  const root = createRootRoute({
    component: () => (
      <Suspense>
        <ForDomain />
      </Suspense>
    ),
  })
  show(<RouterProvider router={createRouter({ routeTree: root, history: createMemoryHistory() }) as never} />)
}

function domain(answer: (a: Asked, query: string, v: Record<string, unknown>) => unknown) {
  return answering((a) => {
    const body = (a.body ?? {}) as { query?: string; variables?: Record<string, unknown> }
    return answer(a, body.query ?? '', body.variables ?? {})
  })
}

test('an administrator of a domain sees how much there is, what waits and why, and who held the most', async () => {
  const asked = domain((a, query, v) => {
    if (a.url.includes('/usage/report'))
      return usage([
        {
          key: 'a',
          name: 'ada@example.org',
          slots: [
            { slot: 'cpu', hours: '900' },
            { slot: 'cuda.device', hours: '1.5' },
          ],
        },
        { key: 'b', name: 'bob@example.org', slots: [{ slot: 'cuda.device', hours: '12' }] },
        { key: 'c', name: 'eve@example.org', slots: [{ slot: 'cpu', hours: '5' }] },
      ])
    if (query.includes('user {')) return { data: { user: me } }
    if (query.includes('user_list')) return { data: { user_list: { total_count: 1200, items: [] } } }
    if (query.includes('group_nodes')) return { data: { group_nodes: { count: 7, edges: [] } } }
    const pending = v['status'] === 'PENDING'
    const items = pending
      ? [{ ...waiting, occupying_slots: '{}', requested_slots: '{}', service_ports: '[]', explanation: { msg: '2 GPUs are needed' } }]
      : []
    return { data: { compute_session_list: { total_count: pending ? 1 : 34, items } } }
  })
  page()
  expect(await screen.findByText('Domain physics')).toBeTruthy()
  for (const n of ['1,200', '7', '34']) expect(await screen.findByText(n)).toBeTruthy()
  expect(await screen.findByText('2 GPUs are needed')).toBeTruthy()
  const holders = (await screen.findByText('bob@example.org')).closest('.stack')!
  expect([...holders.children].map((r) => r.textContent)).toEqual(['bob@example.org12 h', 'ada@example.org1.5 h'])
  expect(JSON.stringify(asked.map((a) => a.body))).toContain('domain_name == \\"physics')
  expect(asked.some((a) => a.url.includes('/manager/scheduler'))).toBe(false)
})

test('what cannot be read says why, each for itself, and nothing is a zero', async () => {
  domain((a, query) => {
    if (query.includes('user {')) return { data: { user: me } }
    if (a.url.includes('/usage/report')) return usage([])
    return refusing(503, { title: 'Away', msg: 'The database is away.', next: 'Try again.' })
  })
  page()
  await waitFor(() => expect(screen.queryAllByText('The database is away.').length).toBe(2))
  expect(await screen.findByText('Nobody held any yet')).toBeTruthy()
  expect(screen.queryByText('0')).toBeNull()
})
