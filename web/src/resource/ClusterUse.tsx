import { queryOptions, useQuery } from '@tanstack/react-query'
import { lazy, Suspense } from 'react'
import { func } from '@/api/http'
import type { History, Point } from '@/api/types'
import { bytes } from '@/design/amounts'
import { ErrorState, Panel, Skeleton } from '@/design/parts'
import type { Series } from '@/session/Charts'
import { t } from '@/words'

const Chart = lazy(() => import('@/session/Charts'))

/** What all machines used together in the last three hours; a minute later there is one point more. */
export const clusterUseQuery = queryOptions({
  queryKey: ['resource', 'use', 'cluster'],
  queryFn: ({ signal }) => func<History>('/metrics/cluster', { signal }),
  refetchInterval: 60_000,
})

/** One figure over time. Steps of which nothing is known are gaps, never zeros. */
export function seriesOf(h: Pick<History, 'step_seconds' | 'series'>, of: (p: Point) => number | null | undefined): Series {
  const out: Series = { at: [], values: [] }
  for (const p of h.series[0]?.points ?? []) {
    const at = Date.parse(p.at) / 1000
    const last = out.at[out.at.length - 1]
    if (last !== undefined && at - last > h.step_seconds) {
      out.at.push(last + h.step_seconds)
      out.values.push(null)
    }
    out.at.push(at)
    out.values.push(of(p) ?? null)
  }
  return out
}

const figures: { id: 'cpu' | 'mem' | 'net'; of: (p: Point) => number | null | undefined; format: (n: number) => string }[] = [
  { id: 'cpu', of: (p) => (p.cpu_util == null ? null : p.cpu_util / 100), format: (n) => n.toFixed(1).replace(/\.0$/, '') },
  { id: 'mem', of: (p) => p.mem, format: (n) => bytes(n) },
  {
    id: 'net',
    of: (p) => (p.net_rx == null || p.net_tx == null ? null : p.net_rx + p.net_tx),
    format: (n) => `${bytes(n)}/s`,
  },
]

/** The use of the cluster over time. */
export function ClusterUse() {
  const use = useQuery(clusterUseQuery)
  return (
    <Panel title={t('cluster.use')}>
      {use.isError && !use.data ? (
        <ErrorState error={use.error} retry={() => void use.refetch()} />
      ) : !use.data ? (
        <Skeleton lines={2} h={84} />
      ) : !use.data.series[0]?.points.length ? (
        <span className="soft">{t('cluster.use.none')}</span>
      ) : (
        <div className="uses">
          {figures.map((f) => {
            const series = seriesOf(use.data, f.of)
            return (
              <div key={f.id} className="stack tight">
                <span className="soft small">{t(`cluster.use.${f.id}`)}</span>
                {series.values.every((v) => v === null) ? (
                  <span className="dim small">{t('agent.device.unmeasured')}</span>
                ) : (
                  <Suspense fallback={<Skeleton lines={1} h={84} />}>
                    <Chart series={series} format={f.format} />
                  </Suspense>
                )}
              </div>
            )
          })}
        </div>
      )}
    </Panel>
  )
}
