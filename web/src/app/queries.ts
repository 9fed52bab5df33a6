import { queryOptions } from '@tanstack/react-query'
import { func } from '@/api/http'
import type { App, Circuit, CircuitChange, Entry, TicketReply } from '@/api/types'

export type { App, Circuit } from '@/api/types'

export const appsQuery = (session: string) =>
  queryOptions({
    queryKey: ['session', 'apps', session],
    queryFn: () => func<App[]>(`/stream/session/${session}/apps`),
    refetchInterval: 15_000, // no event tells that an app inside of a session has come up, or has ended
  })

export const circuitsQuery = (session: string) =>
  queryOptions({
    queryKey: ['session', 'circuits', session],
    queryFn: () => func<Circuit[]>('/apps/circuits', { query: { session } }),
  })

export const closeCircuit = (id: string) => func<null>(`/apps/circuits/${id}`, { method: 'DELETE' })
export const changeCircuit = (id: string, body: Partial<CircuitChange>) => func<Circuit>(`/apps/circuits/${id}`, { method: 'PATCH', body })

/**
 * Starts an app and answers the address that lets this browser in, once.
 */
export async function enterApp(session: string, app: string): Promise<string> {
  const t = await func<TicketReply>(`/session/${session}/tickets`, { body: { app } })
  return (await func<Entry>(`/apps/circuits/${t.circuit}/enter`, { body: {} })).url
}

/** Apps that a browser can show. */
export function forBrowser(a: { name: string; protocol: string }): boolean {
  return a.protocol === 'http' || a.protocol === 'preopen'
}
