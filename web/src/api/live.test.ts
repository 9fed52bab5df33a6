import { QueryClient, QueryObserver } from '@tanstack/react-query'
import { afterEach, beforeEach, expect, test, vi } from 'vitest'
import { follow } from './live'

class Source {
  static all: Source[] = []
  onopen: (() => void) | null = null
  onerror: (() => void) | null = null
  closed = false
  listeners = new Map<string, (e: unknown) => void>()
  constructor() {
    Source.all.push(this)
  }
  addEventListener(name: string, l: (e: unknown) => void) {
    this.listeners.set(name, l)
  }
  close() {
    this.closed = true
  }
  say(name: string, data: unknown) {
    this.listeners.get(name)?.({ data: JSON.stringify(data) })
  }
}

beforeEach(() => {
  vi.useFakeTimers()
  Source.all = []
})
afterEach(() => vi.useRealTimers())

test('an event has the queries of its noun look again, once for many', () => {
  const client = new QueryClient()
  const looked = vi.spyOn(client, 'invalidateQueries').mockResolvedValue()
  const told = vi.fn()
  const stop = follow(client, told, () => new Source() as unknown as EventSource)
  Source.all[0]!.onopen?.()
  looked.mockClear()
  for (let i = 0; i < 50; i++) Source.all[0]!.say('session_started', { sessionId: 's', sessionName: 'n' })
  vi.advanceTimersByTime(200)
  expect(looked.mock.calls.map((c) => c[0]?.queryKey)).toEqual([['session'], ['resource']])
  expect(told).toHaveBeenCalledTimes(50)
  stop()
  expect(Source.all[0]!.closed).toBe(true)
})

test('a stream that breaks is opened again, and everything is looked at', () => {
  const client = new QueryClient()
  const looked = vi.spyOn(client, 'invalidateQueries').mockResolvedValue()
  const stop = follow(
    client,
    () => {},
    () => new Source() as unknown as EventSource,
  )
  Source.all[0]!.onerror?.()
  expect(Source.all).toHaveLength(1)
  vi.advanceTimersByTime(600)
  expect(Source.all).toHaveLength(2)
  Source.all[1]!.onopen?.()
  expect(looked.mock.calls).toEqual([[{}]])
  stop()
  Source.all[1]!.onerror?.()
})

test('what was asked before the stream opened is asked again, also what had no answer yet', async () => {
  const client = new QueryClient()
  let answers = 0
  const asked = { early: 0, waiting: 0, late: 0 }
  const observe = (name: keyof typeof asked, after: number) =>
    new QueryObserver(client, {
      queryKey: [name],
      staleTime: Infinity,
      queryFn: async () => {
        asked[name]++
        await new Promise((done) => setTimeout(done, after))
        return ++answers
      },
    }).subscribe(() => {})
  const ends = [observe('early', 0)]
  await vi.advanceTimersByTimeAsync(1)
  ends.push(observe('waiting', 50))
  const stop = follow(
    client,
    () => {},
    () => new Source() as unknown as EventSource,
  )
  Source.all[0]!.onopen?.()
  ends.push(observe('late', 50))
  await vi.advanceTimersByTimeAsync(1000)
  expect(asked).toEqual({ early: 2, waiting: 2, late: 1 })
  // The same for a change that comes while a first answer is on its way for long.
  const slow = vi.fn(() => new Promise((done) => setTimeout(() => done(1), 2000)))
  ends.push(new QueryObserver(client, { queryKey: ['session', 's'], staleTime: Infinity, queryFn: slow }).subscribe(() => {}))
  await vi.advanceTimersByTimeAsync(100)
  Source.all[0]!.say('session_started', {})
  await vi.advanceTimersByTimeAsync(5000)
  expect(slow).toHaveBeenCalledTimes(2)
  stop()
  for (const end of ends) end()
})

test('why sessions wait is looked at again once in two seconds, however often it changes', () => {
  const client = new QueryClient()
  const looked = vi.spyOn(client, 'invalidateQueries').mockResolvedValue()
  const stop = follow(
    client,
    () => {},
    () => new Source() as unknown as EventSource,
  )
  const source = Source.all[0]!
  for (let i = 0; i < 10; i++) {
    source.say('object_changed', { noun: 'queue', id: `group-${i}`, kind: 'changed' })
    vi.advanceTimersByTime(100)
  }
  expect(looked).not.toHaveBeenCalled()
  vi.advanceTimersByTime(1200)
  expect(looked.mock.calls.map((c) => c[0]?.queryKey)).toContainEqual(['session', 'queue'])
  expect(looked).toHaveBeenCalledTimes(5)
  looked.mockClear()
  source.say('object_changed', { noun: 'invitation', id: 'i', kind: 'made' })
  source.say('object_changed', { noun: 'circuit', id: 'c', kind: 'deleted' })
  vi.advanceTimersByTime(200)
  expect(looked.mock.calls.map((c) => c[0]?.queryKey)).toEqual([
    ['folder', 'invitations'],
    ['session', 'circuits'],
    ['session', 'apps'],
  ])
  stop()
})

test('a change of an object has the queries of its noun look again, and a resync all', () => {
  const client = new QueryClient()
  const looked = vi.spyOn(client, 'invalidateQueries').mockResolvedValue()
  const told = vi.fn()
  let url = ''
  const stop = follow(client, told, (u) => {
    url = u
    return new Source() as unknown as EventSource
  })
  expect(url).toContain('objects=true')
  const source = Source.all[0]!
  source.say('object_changed', { noun: 'folder', id: 'f', kind: 'made' })
  source.say('object_changed', { noun: 'folder', id: 'g', kind: 'deleted' })
  source.say('object_changed', { noun: 'preset', id: 'p', kind: 'changed' })
  source.say('object_changed', { noun: 'announcement', id: 'announcement', kind: 'changed' })
  source.say('object_changed', { noun: 'of a newer server', id: 'x', kind: 'changed' })
  vi.advanceTimersByTime(200)
  expect(looked.mock.calls.map((c) => c[0]?.queryKey)).toEqual([['folder'], ['resource'], ['operation', 'announcement']])
  looked.mockClear()
  source.say('resync', {})
  expect(looked.mock.calls).toEqual([[{}]])
  expect(told).not.toHaveBeenCalled()
  stop()
})
