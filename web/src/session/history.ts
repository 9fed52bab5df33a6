import { queryOptions } from '@tanstack/react-query'
import { func } from '@/api/http'
import type { History } from '@/api/types'
import type { Sample } from './Use'

/** Adds the kernels of a session up, step by step. cores is what the session has; what one kernel lacks in a step is left out of the sum. */
export function samplesOf(h: History, cores: number | null): Sample[] {
  const steps = new Map<number, Record<string, number | null>>()
  for (const s of h.series) {
    for (const p of s.points) {
      const at = Date.parse(p.at) / 1000
      const to = steps.get(at) ?? {}
      steps.set(at, to)
      const add = (id: string, v: number | null | undefined) => {
        if (v !== undefined && v !== null) to[id] = (to[id] ?? 0) + v
      }
      add('cpu', p.cpu_util == null ? undefined : p.cpu_util / (cores || 1))
      add('mem', p.mem)
      add('net', p.net_rx == null || p.net_tx == null ? undefined : p.net_rx + p.net_tx)
      for (const [name, v] of Object.entries(p.devices ?? {})) add(name, v)
    }
  }
  return [...steps].sort((a, b) => a[0] - b[0]).map(([at, values]) => ({ at, values }))
}

/** What a session used: the last three hours of one that runs, all of one that has ended. */
export const historyQuery = (id: string, over: boolean, began: string | null, ended: string | null) =>
  queryOptions({
    queryKey: ['session', id, 'history', over],
    queryFn: ({ signal }) =>
      func<History>(`/session/${id}/metrics`, {
        signal,
        query: over && began ? { from: whole(began, -60), until: whole(ended ?? new Date().toISOString(), 60) } : {},
      }),
    staleTime: over ? Infinity : 60_000,
  })

/** A moment in whole seconds, so many of them later. */
function whole(at: string, later: number): string {
  return new Date(Math.floor(Date.parse(at) / 1000 + later) * 1000).toISOString().replace('.000Z', 'Z')
}
