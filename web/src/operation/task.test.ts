import { expect, test } from 'vitest'
import { answering } from '../../test/wrap'
import { eventsOf, followTask } from './task'

test('events are read whole, however the stream is cut', () => {
  const first = eventsOf('event: bgtask_updated\ndata: {"current_progress":1,"total_progress":4,"message":"a"}\n\nevent: bgtask_do')
  expect(first.news).toEqual([{ event: 'bgtask_updated', message: 'a', current: 1, total: 4 }])
  expect(eventsOf(first.rest + 'ne\ndata: {}\n\n').news.map((n) => n.event)).toEqual(['bgtask_done'])
})

test('a task that fails says why', async () => {
  answering(() => new Response('event: bgtask_failed\ndata: {"message":"the disk is full"}\n\n'))
  await expect(followTask('t')).rejects.toThrow('the disk is full')
})
