import { Problem, funcAnonymous, server, serverGet } from '@/api/http'
import { queryOptions } from '@tanstack/react-query'

export interface LoginState {
  authenticated: boolean
  data: { access_key: string; role: string; status: string } | null
}

/** What a login that did not open needs next. */
export type LoginStep =
  | { kind: 'done' }
  | { kind: 'totp'; wrong: boolean }
  | { kind: 'enrol'; token: string }
  | { kind: 'expired'; details: string }
  | { kind: 'elsewhere' }
  | { kind: 'refused'; details: string }

interface Refusal {
  authenticated: boolean
  data: { type?: string; title?: string; details?: string; two_factor_registration_token?: string }
}

/** Reads the answer to a login. `sent` says whether a one-time password was sent with it. */
export function stepOf(r: Refusal, sent: boolean): LoginStep {
  if (r.authenticated) return { kind: 'done' }
  const type = r.data.type ?? ''
  const details = r.data.details ?? r.data.title ?? ''
  switch (type.slice(type.lastIndexOf('/') + 1)) {
    case 'require-totp-authentication':
      return { kind: 'totp', wrong: sent }
    case 'require-totp-registration':
      return { kind: 'enrol', token: r.data.two_factor_registration_token ?? '' }
    case 'password-expired':
      return { kind: 'expired', details }
    case 'active-login-session-exists':
      return { kind: 'elsewhere' }
  }
  if (details.startsWith('Invalid TOTP')) return { kind: 'totp', wrong: true }
  return { kind: 'refused', details }
}

export async function login(username: string, password: string, otp: string, force: boolean): Promise<LoginStep> {
  try {
    const body: Record<string, unknown> = { username, password }
    if (otp) body['otp'] = otp.replace(/\s/g, '')
    if (force) body['force'] = true
    return stepOf(await server<Refusal>('/login', body), otp !== '')
  } catch (err) {
    if (err instanceof Problem && err.slug === 'generic-bad-request' && err.msg.includes('already logged in')) return { kind: 'done' }
    throw err
  }
}

export const logout = () => server<null>('/logout')

/** Takes out of the browser what tells of a person's work: names of files and sessions. Choices of look stay. */
export function forgetWork(store: Storage = localStorage) {
  for (const key of Object.keys(store)) if (/^berth\.(uploads|read\.|tour\.|views\.|last)/.test(key)) store.removeItem(key)
}

export const loginQuery = queryOptions({
  queryKey: ['login'],
  queryFn: () => server<LoginState>('/login-check'),
  staleTime: Infinity,
  refetchOnWindowFocus: false,
})

export async function replacePassword(username: string, current: string, fresh: string): Promise<string> {
  const r = await server<{ data: { details?: string; title?: string } | null }>('/update-password-no-auth', {
    username,
    current_password: current,
    new_password: fresh,
  })
  return r.data ? (r.data.details ?? r.data.title ?? '') : ''
}

export const beginEnrol = (token: string) =>
  funcAnonymous<{ totp_key: string; totp_uri: string }>('/totp/anon', { registration_token: token })
export const finishEnrol = (token: string, otp: string) =>
  funcAnonymous<{ recovery_codes?: string[] }>('/totp/anon/verify', { registration_token: token, otp })

export const providersQuery = queryOptions({
  queryKey: ['login', 'providers'],
  retry: false,
  staleTime: Infinity,
  queryFn: () => serverGet<{ items: { name: string; title: string }[] }>('/oidc').catch(() => ({ items: [] })),
})
