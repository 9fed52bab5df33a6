import { afterEach, expect, test } from 'vitest'
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
