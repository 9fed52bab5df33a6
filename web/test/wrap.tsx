import { MantineProvider } from '@mantine/core'
import { QueryClient, QueryClientProvider } from '@tanstack/react-query'
import { createMemoryHistory, createRootRoute, createRouter, RouterProvider } from '@tanstack/react-router'
import { render } from '@testing-library/react'
import type { ReactNode } from 'react'
import { vi } from 'vitest'

/** Renders a part with what it needs around it. */
export function show(node: ReactNode) {
  const client = new QueryClient({ defaultOptions: { queries: { retry: false } } })
  const inside = (n: ReactNode) => (
    <MantineProvider env="test">
      <QueryClientProvider client={client}>{n}</QueryClientProvider>
    </MantineProvider>
  )
  const shown = render(inside(node))
  return { ...shown, client, again: (n: ReactNode) => shown.rerender(inside(n)) }
}

/** Renders a part that has links to pages. It is drawn when the router has started: wait for something of it. */
export function showAt(node: ReactNode) {
  vi.stubGlobal('scrollTo', () => {})
  const root = createRootRoute({ component: () => node })
  return show(<RouterProvider router={createRouter({ routeTree: root, history: createMemoryHistory() }) as never} />)
}

export interface Asked {
  url: string
  method: string
  body: unknown
}

/** Answers what is fetched; the answer may be a body, or a status with a body, and may come later. */
export function answering(answer: (a: Asked) => unknown) {
  const asked: Asked[] = []
  vi.stubGlobal(
    'fetch',
    vi.fn(async (url: string, o: RequestInit = {}) => {
      const a = { url, method: o.method ?? 'GET', body: typeof o.body === 'string' ? (JSON.parse(o.body) as unknown) : undefined }
      asked.push(a)
      const r = await answer(a)
      if (r instanceof Response) return r
      return new Response(r === undefined ? '' : JSON.stringify(r), { status: 200, headers: { 'Content-Type': 'application/json' } })
    }),
  )
  return asked
}

export function refusing(status: number, body: Record<string, unknown>) {
  return new Response(JSON.stringify(body), { status, headers: { 'Content-Type': 'application/problem+json' } })
}
