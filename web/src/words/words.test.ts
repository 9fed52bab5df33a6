import { readFileSync } from 'node:fs'
import { afterEach, expect, test } from 'vitest'
import { states, wordOf } from '@/design/state'
import { catalogue } from './catalogue'
import { setLanguage, t, tAny } from '.'

afterEach(() => setLanguage('en'))

test('every text is there in both languages, with the same values', () => {
  const values = (s: string) => [...new Set([...s.matchAll(/\{(\w+)/g)].map((m) => m[1]))].sort()
  for (const [key, [en, ko]] of Object.entries(catalogue)) {
    expect(en.length, key).toBeGreaterThan(0)
    expect(ko.length, key).toBeGreaterThan(0)
    expect(values(ko), key).toEqual(values(en))
  }
})

test('no text pleads or shouts', () => {
  for (const [key, [en]] of Object.entries(catalogue)) expect(en, key).not.toMatch(/please|successfully|!$|something went wrong/i)
})

test('numbers choose their noun, and the language can change', () => {
  expect([t('session.end.n', { n: 1 }), t('session.end.n', { n: 3 })]).toEqual(['End 1 session', 'End 3 sessions'])
  setLanguage('ko')
  expect(t('session.end.n', { n: 3 })).toBe('세션 3개 종료')
  expect(tAny('status.UNHEARD', 'unheard')).toBe('unheard')
})

/** The statuses that the server's sources name: of sessions, agents and folders, of users, and results of the audit log. */
function served(): string[] {
  const source = (path: string) => readFileSync(`../internal/${path}`, 'utf8')
  const all = (path: string, pattern: RegExp) => [...source(path).matchAll(pattern)].map((m) => m[1]!)
  const users = /name: "status", form: text, words: \[\]string\{([^}]+)\}/.exec(source('manager/tenancy/plan/schema.go'))?.[1] ?? ''
  return [
    ...all('cluster/state.go', /^\t\w+ +(?:Agent)?Status += "([A-Z]+)"$/gm),
    ...all('cluster/folder_state.go', /^\t\w+ +FolderStatus += "([a-z-]+)"$/gm),
    ...all('manager/audit/record.go', /^\t(?:Done|Denied) += "([a-z]+)"$/gm),
    ...[...users.matchAll(/"([a-z-]+)"/g)].map((m) => m[1]!),
  ]
}

test('every status that the server can name has a word in both languages, and a look of its own', () => {
  const all = served()
  for (const known of ['RUNNING', 'ALIVE', 'delete-pending', 'denied', 'before-verification']) expect(all).toContain(known)
  for (const of of [...all, ...Object.keys(states), 'FAILED', 'SUCCEEDED']) expect(catalogue, of).toHaveProperty([`status.${of}`])
  for (const of of all) expect(states, of).toHaveProperty([of])
})

test('how a job ended is told in whatever case the server writes it', () => {
  expect([wordOf('TERMINATED', 'SUCCESS'), wordOf('TERMINATED', 'failure'), wordOf('RUNNING', 'UNDEFINED')]).toEqual([
    'SUCCEEDED',
    'FAILED',
    'RUNNING',
  ])
})
