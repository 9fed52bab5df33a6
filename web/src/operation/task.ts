import { funcStream, Problem } from '@/api/http'

export interface TaskNews {
  event: string
  message: string
  current: number
  total: number
}

/** The events that a piece of an event stream completes, and what is left of it. */
export function eventsOf(text: string): { news: TaskNews[]; rest: string } {
  const news: TaskNews[] = []
  const blocks = text.split('\n\n')
  const rest = blocks.pop() ?? ''
  for (const block of blocks) {
    const line = (name: string) =>
      block
        .split('\n')
        .find((l) => l.startsWith(name + ':'))
        ?.slice(name.length + 1)
        .trim()
    const event = line('event')
    if (!event) continue
    try {
      const d = JSON.parse(line('data') ?? '{}') as Record<string, unknown>
      news.push({
        event,
        message: String(d['message'] ?? ''),
        current: Number(d['current_progress'] ?? 0),
        total: Number(d['total_progress'] ?? 0),
      })
    } catch {
      news.push({ event, message: '', current: 0, total: 0 })
    }
  }
  return { news, rest }
}

/** Follows a background task to its end. One that fails rejects with what it said. */
export async function followTask(id: string, onNews: (n: TaskNews) => void = () => {}): Promise<void> {
  let rest = ''
  let failed = ''
  let over = false
  await funcStream('/events/background-task', { query: { task_id: id } }, (part) => {
    const got = eventsOf(rest + part)
    rest = got.rest
    for (const n of got.news) {
      onNews(n)
      if (n.event === 'bgtask_done') over = true
      if (n.event === 'bgtask_failed' || n.event === 'bgtask_cancelled') failed = n.message || n.event
    }
  })
  if (failed) throw new Problem(500, 'task-failed', failed, failed, '', '')
  if (!over)
    throw new Problem(0, 'unreachable', 'The task is no longer heard of.', 'The task is no longer heard of.', 'Look at the page again.', '')
}
