import { expect, test } from 'vitest'
import { mayReload } from './versions'

test('a page of an earlier version loads itself again, but not for ever', () => {
  const kept = new Map<string, string>()
  const store = { getItem: (k: string) => kept.get(k) ?? null, setItem: (k: string, v: string) => void kept.set(k, v) }
  expect(mayReload(store, 1_000_000)).toBe(true)
  expect(mayReload(store, 1_030_000)).toBe(false)
  expect(mayReload(store, 1_061_000)).toBe(true)
})
