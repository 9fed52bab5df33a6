import { screen, waitFor } from '@testing-library/react'
import userEvent from '@testing-library/user-event'
import { afterEach, expect, test, vi } from 'vitest'
import { answering, show, type Asked } from '../../test/wrap'
import { LoginForm } from './LoginForm'
import { stepOf, forgetWork } from './login'

afterEach(() => vi.unstubAllGlobals())

const refusal = (slug: string, details = '', more = {}) => ({
  authenticated: false,
  data: { type: `https://api.backend.ai/probs/${slug}`, title: 'x', details, ...more },
})

test('what a login needs next is read from the answer', () => {
  expect(stepOf({ authenticated: true, data: {} }, false)).toEqual({ kind: 'done' })
  expect(stepOf(refusal('require-totp-authentication', 'OTP not provided'), false)).toEqual({ kind: 'totp', wrong: false })
  expect(stepOf(refusal('auth-failed', 'Invalid TOTP code provided'), true)).toEqual({ kind: 'totp', wrong: true })
  expect(stepOf(refusal('require-totp-registration', '', { two_factor_registration_token: 'T' }), false)).toEqual({
    kind: 'enrol',
    token: 'T',
  })
  expect(stepOf(refusal('password-expired', 'Password expired on 2026'), false)).toEqual({
    kind: 'expired',
    details: 'Password expired on 2026',
  })
  expect(stepOf(refusal('active-login-session-exists'), false)).toEqual({ kind: 'elsewhere' })
  expect(stepOf(refusal('auth-failed', 'User credential mismatch.'), false)).toEqual({
    kind: 'refused',
    details: 'User credential mismatch.',
  })
})

async function fill(name: string, password: string) {
  await userEvent.type(screen.getByLabelText(/Email or user name/), name)
  await userEvent.type(screen.getByLabelText(/^Password/), password)
  await userEvent.click(screen.getByRole('button', { name: 'Log in' }))
}

test('a wrong password is said in words, and what was typed stays', async () => {
  answering((a) => (a.url === '/server/login' ? refusal('auth-failed', 'User credential mismatch.') : { items: [] }))
  show(<LoginForm onDone={() => {}} />)
  await fill('ada@x', 'wrong')
  await screen.findByText(/do not belong together/)
  expect((screen.getByLabelText(/Email or user name/) as HTMLInputElement).value).toBe('ada@x')
})

test('a second factor is asked for, and sent with the password', async () => {
  const done = vi.fn()
  const asked = answering((a: Asked) => {
    if (a.url !== '/server/login') return { items: [] }
    const otp = (a.body as { otp?: string }).otp
    return otp === '123456'
      ? { authenticated: true, data: {} }
      : refusal(otp ? 'auth-failed' : 'require-totp-authentication', otp ? 'Invalid TOTP code provided' : 'OTP not provided')
  })
  show(<LoginForm onDone={done} />)
  await fill('ada@x', 'secret')
  await userEvent.type(await screen.findByLabelText(/One-time password/), '1')
  await userEvent.click(screen.getByRole('button', { name: 'Continue' }))
  await screen.findByText(/This code is not right/)
  await userEvent.type(screen.getByLabelText(/One-time password/), '123 456')
  await userEvent.click(screen.getByRole('button', { name: 'Continue' }))
  await waitFor(() => expect(done).toHaveBeenCalled())
  expect(asked.filter((a) => a.url === '/server/login').at(-1)?.body).toEqual({ username: 'ada@x', password: 'secret', otp: '123456' })
})

test('as many logins as allowed: asks before the oldest is ended', async () => {
  const done = vi.fn()
  answering((a) =>
    a.url !== '/server/login'
      ? { items: [] }
      : (a.body as { force?: boolean }).force
        ? { authenticated: true, data: {} }
        : refusal('active-login-session-exists'),
  )
  show(<LoginForm onDone={done} />)
  await fill('ada@x', 'secret')
  await userEvent.click(await screen.findByRole('button', { name: 'End the oldest and log in' }))
  await waitFor(() => expect(done).toHaveBeenCalled())
})

test('a logout leaves nothing of the work in the browser, and keeps the look', () => {
  for (const k of [
    'berth.uploads',
    'berth.read.u',
    'berth.tour.u',
    'berth.views.sessions',
    'berth.last',
    'berth.theme',
    'berth.columns.sessions',
    'other',
  ])
    localStorage.setItem(k, 'x')
  forgetWork()
  expect(Object.keys(localStorage).sort()).toEqual(['berth.columns.sessions', 'berth.theme', 'other'])
  localStorage.clear()
})
