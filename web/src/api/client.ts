import { QueryClient } from '@tanstack/react-query'
import { Problem } from './http'

/** What cannot get better is not asked again. */
export function worthAnother(count: number, err: unknown): boolean {
  return err instanceof Problem && err.passing && count < 2
}

export function newClient(): QueryClient {
  return new QueryClient({
    defaultOptions: {
      queries: { staleTime: 5_000, retry: worthAnother, refetchOnWindowFocus: true, networkMode: 'always' },
      mutations: { retry: false, networkMode: 'always' },
    },
  })
}
