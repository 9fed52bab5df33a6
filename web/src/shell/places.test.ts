import { expect, test } from 'vitest'
import type { Me } from '@/tenancy/me'
import { barOf, placesOf } from './places'

const of = (role: string) => barOf(placesOf({ role } as Me)).map((part) => part.map((p) => p.to))

test('the bar of a narrow screen leads to every place, and none is cut off', () => {
  expect(of('user')).toEqual([['/', '/sessions', '/data', '/images', '/templates'], []])
  const [bar, more] = of('superadmin')
  expect(bar).toEqual(['/', '/sessions', '/data', '/images'])
  expect(more).toEqual(
    placesOf({ role: 'superadmin' } as Me)
      .map((p) => p.to)
      .slice(4),
  )
  expect(more).toContain('/admin/settings')
})
