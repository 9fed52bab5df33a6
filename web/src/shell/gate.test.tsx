import { useQuery } from '@tanstack/react-query'
import { act, screen, waitFor } from '@testing-library/react'
import userEvent from '@testing-library/user-event'
import { afterEach, beforeEach, expect, test, vi } from 'vitest'
import { expire } from '@/api/http'
import { hear } from '@/api/live'
import { answering, refusing, show } from '../../test/wrap'
import { Gate } from './Gate'

// The form of the login has tests of its own.
vi.mock('@/tenancy/LoginForm', () => ({ LoginForm: ({ onDone }: { onDone: () => void }) => <button onClick={onDone}>Log in</button> }))

/** The stream of changes, which the browser would open. */
class Stream {
  static all: Stream[] = []
  onopen: (() => void) | null = null
  listeners = new Map<string, (e: unknown) => void>()
  constructor() {
    Stream.all.push(this)
  }
  addEventListener(name: string, l: (e: unknown) => void) {
    this.listeners.set(name, l)
  }
  closed = false
  close() {
    this.closed = true
  }
}

beforeEach(() => {
  Stream.all = []
  vi.stubGlobal('EventSource', Stream)
})
afterEach(() => vi.unstubAllGlobals())

/** A cluster whose network a test takes away. */
function cluster() {
  const state: { broken: '' | 'network' | 'login' | 'all' } = { broken: '' }
  answering((a) => {
    if (state.broken === 'all') throw new TypeError('Failed to fetch')
    if (a.url === '/server/login-check') return { authenticated: true, data: { access_key: 'AK', role: 'user', status: 'active' } }
    if (state.broken === 'network') throw new TypeError('Failed to fetch')
    if (state.broken === 'login') return refusing(401, { title: 'Nobody is logged in.' })
    return { data: { user: { email: 'ada@x', groups: [] } } }
  })
  return state
}

async function expired() {
  const state = cluster()
  show(
    <Gate>
      <textarea aria-label="draft" />
    </Gate>,
  )
  await userEvent.type(await screen.findByLabelText('draft'), 'not lost')
  expire()
  return { state, login: await screen.findByRole('button', { name: 'Log in' }) }
}

const draft = () => (screen.getByLabelText('draft') as HTMLTextAreaElement).value

test('when the network fails after a new login, that is said and can be tried again', async () => {
  const { state, login } = await expired()
  state.broken = 'network'
  await userEvent.click(login)
  expect(await screen.findByText('The cluster does not answer.')).toBeTruthy()
  expect(screen.queryByRole('button', { name: 'Log in' })).toBeNull()
  state.broken = ''
  await userEvent.click(screen.getByRole('button', { name: 'Try again' }))
  await waitFor(() => expect(screen.queryByText('The cluster does not answer.')).toBeNull())
  expect(screen.queryByRole('button', { name: 'Log in' })).toBeNull()
  expect(draft()).toBe('not lost')
})

test('a new login that has ended already is asked for again', async () => {
  const { state, login } = await expired()
  state.broken = 'login'
  await userEvent.click(login)
  await waitFor(() => expect(screen.getByRole('button', { name: 'Log in' })).toBeTruthy())
  state.broken = ''
  await userEvent.click(screen.getByRole('button', { name: 'Log in' }))
  await waitFor(() => expect(screen.queryByRole('button', { name: 'Log in' })).toBeNull())
  expect(draft()).toBe('not lost')
})

test('a login that cannot be looked at again leaves the page as it is', async () => {
  const state = cluster()
  const { client } = show(
    <Gate>
      <textarea aria-label="draft" />
    </Gate>,
  )
  await userEvent.type(await screen.findByLabelText('draft'), 'not lost')
  state.broken = 'all'
  act(() => Stream.all[0]!.onopen?.()) // everything is asked again
  await waitFor(() => expect(client.getQueryState(['login'])?.status).toBe('error'))
  expect(draft()).toBe('not lost')
  expect(Stream.all[0]!.closed).toBe(false)
})

test('nobody follows changes but who is logged in', async () => {
  let authenticated = false
  answering((a) => {
    if (a.url === '/server/login-check')
      return { authenticated, data: authenticated ? { access_key: 'AK', role: 'user', status: 'active' } : null }
    return { data: { user: { email: 'ada@x', groups: [] } } }
  })
  const { unmount } = show(
    <Gate>
      <p>inside</p>
    </Gate>,
  )
  const login = await screen.findByRole('button', { name: 'Log in' })
  expect(Stream.all).toHaveLength(0)
  authenticated = true
  await userEvent.click(login)
  await screen.findByText('inside')
  expect(Stream.all).toHaveLength(1)
  unmount()
  expect(Stream.all[0]!.closed).toBe(true)
})

test('the stream of changes opens while the page is on its way, so that the page asks only once', async () => {
  let tell = () => {}
  const told = new Promise<void>((done) => (tell = done))
  let asked = 0
  let askedWho = 0
  answering(async (a) => {
    if (a.url === '/server/login-check') return { authenticated: true, data: { access_key: 'AK', role: 'user', status: 'active' } }
    if (a.url === '/page') return { times: ++asked }
    askedWho++
    await told
    return { data: { user: { email: 'ada@x', groups: [] } } }
  })
  function Page() {
    const page = useQuery({ queryKey: ['page'], queryFn: async () => (await fetch('/page')).json() as Promise<{ times: number }> })
    return <p>{page.data ? `asked ${page.data.times}` : 'asking'}</p>
  }
  const heard = vi.fn()
  const stop = hear(heard)
  show(
    <Gate>
      <Page />
    </Gate>,
  )
  await waitFor(() => expect(Stream.all).toHaveLength(1))
  expect(asked).toBe(0)
  act(() => Stream.all[0]!.onopen?.())
  tell()
  expect(await screen.findByText('asked 1')).toBeTruthy()
  Stream.all[0]!.listeners.get('session_started')?.({ data: JSON.stringify({ sessionId: 's', sessionName: 'n' }) })
  expect(heard).toHaveBeenCalledWith({ event: 'session_started', sessionId: 's', sessionName: 'n', detail: '' })
  await waitFor(() => expect(askedWho).toBe(2)) // it was on its way when the stream opened
  expect(asked).toBe(1)
  stop()
})
