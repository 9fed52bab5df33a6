import { queryOptions } from '@tanstack/react-query'
import { func } from '@/api/http'

export interface App {
  name: string
  protocol: string
  ports: number[]
  state?: string
  detail?: string
  origin?: string
}

export const appsQuery = (session: string) =>
  queryOptions({
    queryKey: ['session', 'apps', session],
    queryFn: () => func<App[]>(`/stream/session/${session}/apps`),
    refetchInterval: 15_000,
  })

export interface Circuit {
  id: string
  app: string
  url: string
  public: boolean
  mine: boolean
  protocol: string
  last_used: string | null
  shared_users: string[]
}

export const circuitsQuery = (session: string) =>
  queryOptions({
    queryKey: ['session', 'circuits', session],
    queryFn: () => func<Circuit[]>('/apps/circuits', { query: { session } }),
  })

export const closeCircuit = (id: string) => func<null>(`/apps/circuits/${id}`, { method: 'DELETE' })
export const changeCircuit = (id: string, body: { public?: boolean; shared_users?: string[] }) =>
  func<Circuit>(`/apps/circuits/${id}`, { method: 'PATCH', body })

/**
 * Starts an app and answers the address that lets this browser in, once.
 */
export async function enterApp(session: string, app: string): Promise<string> {
  const t = await func<{ circuit: string }>(`/session/${session}/tickets`, { body: { app } })
  return (await func<{ url: string }>(`/apps/circuits/${t.circuit}/enter`, { body: {} })).url
}

/** Apps that a browser can show. */
export function forBrowser(a: { name: string; protocol: string }): boolean {
  return a.protocol === 'http' || a.protocol === 'preopen'
}
