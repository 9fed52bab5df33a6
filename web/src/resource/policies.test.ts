import { afterEach, expect, test, vi } from 'vitest'
import { listDomains } from '@/tenancy/queries'
import { answering } from '../../test/wrap'
import { listOwnPolicies, listPolicies } from './queries'

afterEach(() => vi.unstubAllGlobals())

test('policies and domains are asked for by pages, with what is searched as text and not as a pattern', async () => {
  const asked = answering((a) => {
    const field = /\) \{\s*(\w+)\(/.exec((a.body as { query: string }).query)![1]!
    return { data: { [field]: { total_count: 100_000, items: [{ name: 'one' }] } } }
  })
  const pages = [
    await listPolicies('a"b%', 100, 200),
    await listOwnPolicies('user', undefined, 100, 0),
    await listOwnPolicies('project', '', 100, 0),
    await listDomains('x', 100, 0),
  ]
  for (const p of pages) expect(p).toEqual({ total: 100_000, items: [{ name: 'one' }] })
  const sent = asked.map((a) => (a.body as { variables: unknown }).variables)
  expect(sent).toEqual([
    { l: 100, o: 200, f: String.raw`name ilike "%a\"b\\%%"` },
    { l: 100, o: 0, f: null },
    { l: 100, o: 0, f: null },
    { l: 100, o: 0, f: '(name ilike "%x%" | description ilike "%x%")' },
  ])
})
