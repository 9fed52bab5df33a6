import { expect, test } from 'vitest'
import type { AuditEntry } from '@/api/types'
import { answering } from '../../test/wrap'
import { auditFilter, exportAudit, fromField, toField, whoOf } from './audit'

const entry = (part: Partial<AuditEntry>): AuditEntry => ({
  id: 1,
  at: '2026-11-27T04:00:00+00:00',
  action: 'user.modify',
  object: 'x@example.org',
  result: 'done',
  user_id: '',
  email: '',
  role: '',
  domain_name: '',
  access_key: '',
  address: '',
  request_id: '',
  changes: [],
  change_count: 0,
  ...part,
})

test('conditions are joined, and what is typed stays text', () => {
  expect(auditFilter({})).toBe('')
  expect(auditFilter({ result: 'denied', domain: 'a"b', action: 'login.' })).toBe(
    'action ilike "%login.%" & result == "denied" & domain_name == "a\\"b"',
  )
  expect(auditFilter({ q: '50%_\\' })).toContain('object ilike "%50\\\\%\\\\_\\\\\\\\%"')
  expect(auditFilter({ from: '2026-11-27T04:00Z', until: 'never' })).toBe('at >= "2026-11-27T04:00:00.000Z"')
})

test('who is sought is found where they only tried', () => {
  expect(auditFilter({ who: 'ada@' })).toBe('(email ilike "%ada@%" | (email == "" & object ilike "%ada@%"))')
})

test('of a refused login the account that was tried is told, and of nothing else', () => {
  expect(whoOf(entry({ email: 'ada@example.org' }))).toEqual({ name: 'ada@example.org', tried: false })
  expect(whoOf(entry({ result: 'denied', means: 'password' }))).toEqual({ name: 'x@example.org', tried: true })
  expect(whoOf(entry({ result: 'denied', means: 'password', object: '' }))).toEqual({ name: '', tried: true })
  expect(whoOf(entry({ result: 'denied' }))).toEqual({ name: '', tried: false })
})

test('the export is JSON lines, asks page by page and ends', async () => {
  let left = 250
  const asked = answering(() => {
    const items = Array.from({ length: Math.min(100, left) }, () => entry({ id: left-- }))
    return { items, total_count: 250 }
  })
  const seen: number[] = []
  const r = await exportAudit('result == "done"', new AbortController().signal, (n) => seen.push(n))
  expect([r.lines, r.whole, seen]).toEqual([250, true, [100, 200, 250]])
  const lines = r.text.trimEnd().split('\n')
  expect(lines.map((l) => (JSON.parse(l) as AuditEntry).id)).toEqual(Array.from({ length: 250 }, (_, i) => 250 - i))
  expect(new URLSearchParams(asked[1]!.url.split('?')[1]).get('filter')).toBe('result == "done" & id < 151')
})

test('an export has a bound, and says that it was reached', async () => {
  answering(() => ({ items: Array.from({ length: 100 }, (_, i) => entry({ id: 1000 - i })), total_count: 1_000_000 }))
  const r = await exportAudit('', new AbortController().signal, () => {}, 200)
  expect([r.lines, r.whole]).toEqual([200, false])
})

test('a moment is the same in the address, whatever the zone', () => {
  const at = '2026-11-27T04:05:00.000Z'
  expect(fromField(toField(at))).toBe(at)
  expect([toField('soon'), fromField('')]).toEqual(['', undefined])
})
