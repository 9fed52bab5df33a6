import { screen, waitFor, within } from '@testing-library/react'
import userEvent from '@testing-library/user-event'
import { afterEach, expect, test, vi } from 'vitest'
import type { Delivery, Preferences } from '@/api/types'
import { answering, refusing, show, type Asked } from '../../test/wrap'
import { NoticeSettings } from './NoticeSettings'

afterEach(() => vi.unstubAllGlobals())

const nothing: Preferences = {
  kinds: ['ended', 'failed', 'idle', 'shared'],
  email: 'ada@x',
  no_email: '',
  email_kinds: [],
  webhook_url: '',
  webhook_kinds: [],
}

/** A manager that keeps what is set. */
function manager(now: Preferences, sent: Partial<Delivery>[] = [], test: (a: Asked) => unknown = () => ({ id: 'n' })) {
  let kept = now
  return answering((a) => {
    if (a.url === '/func/notices') return { items: sent }
    if (a.url === '/func/notices/test') return test(a)
    if (a.method !== 'PUT') return kept
    const c = a.body as Preferences & { new_secret?: boolean }
    const fresh = c.new_secret || (c.webhook_url && c.webhook_url !== kept.webhook_url)
    kept = { ...kept, email_kinds: c.email_kinds, webhook_url: c.webhook_url, webhook_kinds: c.webhook_kinds }
    return { ...kept, ...(fresh ? { webhook_secret: 'bwhs_once' } : {}) }
  })
}

const group = (name: string) => within(screen.getByRole('group', { name }))

test('by default one hears of nothing; what is chosen is saved, and the secret is shown once', async () => {
  const asked = manager(nothing)
  show(<NoticeSettings />)
  const save = (await screen.findByRole('button', { name: 'Save changes' })) as HTMLButtonElement
  expect(save.disabled).toBe(true)
  expect(screen.getByText('None was sent yet')).toBeTruthy()
  await userEvent.click(group('By e-mail').getByRole('checkbox', { name: 'A session failed' }))
  await userEvent.type(screen.getByRole('textbox', { name: 'Address' }), 'https://x.org/hook')
  await userEvent.click(group('By webhook').getByRole('checkbox', { name: 'A folder is shared with me' }))
  await userEvent.click(save)
  expect(await screen.findByText('bwhs_once')).toBeTruthy()
  expect(asked.find((a) => a.method === 'PUT')?.body).toEqual({
    email_kinds: ['failed'],
    webhook_url: 'https://x.org/hook',
    webhook_kinds: ['shared'],
  })
  await waitFor(() => expect(save.disabled).toBe(true))
  expect(screen.getByText('bwhs_once')).toBeTruthy()
})

test('a webhook without an address hears of nothing', async () => {
  const asked = manager({ ...nothing, webhook_url: 'https://x.org', webhook_kinds: ['idle'] })
  show(<NoticeSettings />)
  await userEvent.clear(await screen.findByRole('textbox', { name: 'Address' }))
  await userEvent.click(screen.getByRole('button', { name: 'Save changes' }))
  await waitFor(() => expect(asked.find((a) => a.method === 'PUT')?.body).toEqual({ email_kinds: [], webhook_url: '', webhook_kinds: [] }))
})

test('where the cluster sends no e-mail the page says so', async () => {
  manager({ ...nothing, no_email: 'this cluster sends no e-mail' })
  show(<NoticeSettings />)
  expect(await screen.findByText(/This cluster sends no e-mail/)).toBeTruthy()
  for (const b of screen.getAllByRole('button', { name: 'Send a test' })) expect((b as HTMLButtonElement).disabled).toBe(true)
})

test('notices that did not arrive say why, and a test that is refused says so', async () => {
  manager(
    { ...nothing, webhook_url: 'https://x.org' },
    [
      {
        id: '1',
        channel: 'webhook',
        kind: 'failed',
        text: 'Session a failed.',
        state: 'failed',
        attempts: 8,
        error: 'the receiver answered 503',
      },
      { id: '2', channel: 'email', kind: 'ended', text: 'Session b has ended.', state: 'sent', attempts: 1, error: '' },
    ].map((d) => ({ ...d, at: '2026-11-27T12:00:00+00:00' })),
    () => refusing(429, { type: 'x/rate-limit-exceeded', title: 'Slow down', msg: '5 notices were sent to try the way' }),
  )
  show(<NoticeSettings />)
  expect(await screen.findByText(/the receiver answered 503 \(8 attempts\)/)).toBeTruthy()
  expect(screen.getByText('Session b has ended.')).toBeTruthy()
  await userEvent.click(screen.getAllByRole('button', { name: 'Send a test' })[1]!)
  expect(await screen.findByText(/5 notices were sent/)).toBeTruthy()
})

test('preferences that cannot be read say why', async () => {
  answering((a) =>
    a.url === '/func/notices' ? { items: [] } : refusing(503, { type: 'x/away', title: 'Away', msg: 'the database is away' }),
  )
  show(<NoticeSettings />)
  expect(await screen.findByText(/the database is away/)).toBeTruthy()
})
