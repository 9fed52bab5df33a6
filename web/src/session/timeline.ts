import { instant } from '@/design/time'

export interface Step {
  status: string
  at: number
  ms: number | null
}

const order = [
  'PENDING',
  'SCHEDULED',
  'PREPARING',
  'PULLING',
  'PREPARED',
  'CREATING',
  'RUNNING',
  'TERMINATING',
  'TERMINATED',
  'CANCELLED',
  'ERROR',
]

/** The steps of a session with how long each took; the one that goes on lasts until now, a final one has no length. */
export function stepsOf(history: Record<string, string>, now: number): Step[] {
  const all = Object.entries(history)
    .map(([status, at]) => ({ status, at: instant(at) }))
    .filter((s): s is { status: string; at: number } => s.at !== null && order.includes(s.status))
    .sort((a, b) => a.at - b.at || order.indexOf(a.status) - order.indexOf(b.status))
  return all.map((s, i) => {
    const next = all[i + 1]
    const final = ['TERMINATED', 'CANCELLED', 'ERROR'].includes(s.status)
    return { ...s, ms: next ? next.at - s.at : final ? null : Math.max(0, now - s.at) }
  })
}
