import { afterEach, expect, test, vi } from 'vitest'
import { answering, refusing } from '../../test/wrap'
import { func, gql, mutate, onExpired, parsed, Problem, quoted } from './http'

afterEach(() => vi.unstubAllGlobals())

test('a problem of the cluster keeps what happened, what to do next and the request', async () => {
  answering(() =>
    refusing(400, {
      type: 'https://api.backend.ai/probs/session-already-exists',
      title: 'Exists',
      msg: 'it exists already; choose another name',
      next: 'choose another name',
      request_id: 'abc',
    }),
  )
  const p = await func('/session').catch((e: unknown) => e)
  expect(p).toBeInstanceOf(Problem)
  const problem = p as Problem
  expect([problem.slug, problem.what, problem.next, problem.requestId, problem.passing]).toEqual([
    'session-already-exists',
    'it exists already',
    'choose another name',
    'abc',
    false,
  ])
})

test('an answer that is no problem document is a problem all the same', async () => {
  answering(() => new Response('<html>bad gateway</html>', { status: 502 }))
  const p = (await func('/session').catch((e: unknown) => e)) as Problem
  expect([p.status, p.passing]).toEqual([502, true])
})

test('a cluster that does not answer is told apart from a refusal', async () => {
  vi.stubGlobal(
    'fetch',
    vi.fn(() => Promise.reject(new TypeError('network'))),
  )
  const p = (await func('/x').catch((e: unknown) => e)) as Problem
  expect([p.status, p.passing]).toEqual([0, true])
})

test('401 tells that the login has ended', async () => {
  answering(() => refusing(401, { title: 'Unauthorized' }))
  const ended = vi.fn()
  const stop = onExpired(ended)
  await func('/x').catch(() => {})
  stop()
  await func('/x').catch(() => {})
  expect(ended).toHaveBeenCalledTimes(1)
})

test('an error of GraphQL, or ok: false of a change, is thrown', async () => {
  answering(() => ({ data: null, errors: [{ message: 'no such domain', extensions: { next: 'berth domain list' } }] }))
  await expect(gql('query { x }')).rejects.toMatchObject({ what: 'no such domain', next: 'berth domain list' })
  answering(() => ({ data: { delete_group: { ok: false, msg: 'it has sessions' } } }))
  await expect(mutate('mutation { x }')).rejects.toMatchObject({ what: 'it has sessions' })
})

test('texts of filters cannot leave their quotes', () => {
  expect(quoted('a" | status == "x\\')).toBe('"a\\" | status == \\"x\\\\"')
})

test('JSON inside of text that cannot be read is what the caller says', () => {
  expect(parsed('{', 1)).toBe(1)
  expect(parsed('{"a":2}', {})).toEqual({ a: 2 })
  expect(parsed(null, [])).toEqual([])
})
