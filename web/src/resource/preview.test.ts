import { expect, test } from 'vitest'
import type { Limit } from '@/api/types'
import { concerns, effects } from './preview'

const level = (level: string, limit: string, using = '0', policy?: string) => ({
  level,
  limit,
  using,
  remaining: '',
  binds: false,
  ...(policy ? { policy } : {}),
})
const limits: Limit[] = [
  { kind: 'running', what: 'cpu', remaining: '', levels: [level('keypair', '8', '6', 'small'), level('project', '16')] },
  { kind: 'running', what: 'mem', remaining: '', levels: [level('keypair', 'Infinity', '0', 'small'), level('domain', '4096')] },
  { kind: 'session', what: 'containers', remaining: '', levels: [level('keypair', '1', '0', 'small')] },
]

test('the smallest limit counts, before and after', () => {
  const [cpu, mem, containers] = effects(limits, 'small', { 'running cpu': 4, 'running mem': 8192, 'session containers': 1 })
  expect([cpu?.now?.limit, cpu?.then?.limit, cpu?.changed, cpu?.over]).toEqual(['8', '4', true, '6'])
  // A limit above that of the domain changes nothing.
  expect([mem?.now?.level, mem?.then?.level, mem?.changed, mem?.over]).toEqual(['domain', 'domain', false, null])
  expect(containers?.changed).toBe(false)
})

test('a limit that is taken away leaves the next one, and none is none', () => {
  const [cpu] = effects(limits, 'small', { 'running cpu': null })
  expect([cpu?.then?.level, cpu?.then?.limit]).toEqual(['project', '16'])
  const [, , containers] = effects(limits, 'small', { 'session containers': null })
  expect(containers?.then).toBe(null)
})

test('another policy and what a draft does not name stay', () => {
  expect(effects(limits, 'large', { 'running cpu': 1 }).some((e) => e.changed)).toBe(false)
  expect(effects(limits, 'small', {}).some((e) => e.changed)).toBe(false)
  expect([concerns(limits, 'small'), concerns(limits, 'large')]).toEqual([true, false])
})
