import { expect, test } from 'vitest'
import { reasonsOf } from './ForAdministrators'

test('reasons are added up over the groups, the most frequent first', () => {
  const groups: { reasons: Record<string, number> }[] = [
    { reasons: { quota: 2, 'no-capacity': 1 } },
    { reasons: { 'no-capacity': 4 } },
    { reasons: {} },
  ]
  expect(reasonsOf(groups)).toEqual([
    ['no-capacity', 5],
    ['quota', 2],
  ])
  expect(reasonsOf([])).toEqual([])
})
