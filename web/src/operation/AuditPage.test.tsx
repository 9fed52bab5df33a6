import { screen, waitFor } from '@testing-library/react'
import userEvent from '@testing-library/user-event'
import { Suspense } from 'react'
import { expect, test, vi } from 'vitest'
import type { AuditEntry } from '@/api/types'
import { answering, refusing, show } from '../../test/wrap'
import type { AuditSearch } from './audit'
import { Export, Filters, Who } from './AuditPage'

const person = (role: string) => (a: { body: unknown }) =>
  JSON.stringify(a.body).includes('domains') ? { data: { domains: [{ name: 'lab' }] } } : { data: { user: { role, groups: [] } } }

async function filters(role: string, search: AuditSearch) {
  answering(person(role))
  const set = vi.fn()
  show(
    <Suspense fallback="…">
      <Filters search={search} set={set} seen={['login.open']} />
    </Suspense>,
  )
  await screen.findByRole('searchbox', { name: 'Person' })
  return set
}

test('filters write what is chosen and take it back', async () => {
  const set = await filters('superadmin', { result: 'denied' })
  expect(screen.getByRole('button', { name: 'Denied' }).getAttribute('aria-pressed')).toBe('true')
  await userEvent.type(screen.getByRole('searchbox', { name: 'Person' }), 'ada')
  await waitFor(() => expect(set).toHaveBeenLastCalledWith({ who: 'ada' }))
  await userEvent.click(screen.getByRole('button', { name: 'Show everything' }))
  expect((set.mock.lastCall as [AuditSearch])[0].result).toBeUndefined()
})

test("a domain's administrator is not asked which domain", async () => {
  await filters('admin', {})
  expect(screen.queryByRole('textbox', { name: 'Domain' })).toBeNull()
  expect(screen.queryByRole('button', { name: 'Show everything' })).toBeNull()
})

test('an account that was tried is not called its owner', () => {
  show(<Who of={{ email: '', object: 'ada@example.org', means: 'password', role: '' } as AuditEntry} />)
  expect(screen.getByText('tried: ada@example.org')).toBeTruthy()
})

test('an export that is refused says why, and can be tried again', async () => {
  answering(() => refusing(403, { type: 'x/denied', title: 'Denied', msg: 'you may not read the audit log' }))
  show(<Export filter="" none={false} />)
  await userEvent.click(screen.getByRole('button', { name: 'Download as JSON lines' }))
  expect(await screen.findByText(/you may not read the audit log/)).toBeTruthy()
  expect(screen.getByRole('button', { name: 'Download as JSON lines' })).toBeTruthy()
})
