import { keepPreviousData, useQueries } from '@tanstack/react-query'
import { useCallback, useMemo, useState } from 'react'

export interface Page<T> {
  items: T[]
  total: number
}

const size = 100

/** Rows of a list of any length: only the pages in view are fetched, and only they are looked at again. */
export function usePaged<T>(
  key: readonly unknown[],
  load: (limit: number, offset: number, signal: AbortSignal) => Promise<Page<T>>,
  every?: number,
) {
  const [range, setRange] = useState<[number, number]>([0, 0])
  const pages = useMemo(() => {
    const out: number[] = [0]
    for (let i = Math.floor(range[0] / size); i <= Math.floor(range[1] / size); i++) if (i > 0) out.push(i)
    return out
  }, [range])
  const queries = useQueries({
    queries: pages.map((n) => ({
      queryKey: [...key, n],
      queryFn: ({ signal }: { signal: AbortSignal }) => load(size, n * size, signal),
      placeholderData: n === 0 ? keepPreviousData : undefined,
      refetchInterval: every ?? false,
    })),
  })
  const head = queries[0]
  const onRange = useCallback((first: number, last: number) => {
    setRange((old) =>
      Math.floor(old[0] / size) === Math.floor(first / size) && Math.floor(old[1] / size) === Math.floor(last / size) ? old : [first, last],
    )
  }, [])
  const row = (i: number): T | undefined => {
    const at = pages.indexOf(Math.floor(i / size))
    return at < 0 ? undefined : queries[at]?.data?.items[i % size]
  }
  return {
    total: head?.data?.total,
    row,
    onRange,
    error: head?.error ?? null,
    retry: () => void head?.refetch(),
    fetching: !!head?.isFetching,
  }
}
