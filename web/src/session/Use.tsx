import { lazy, Suspense, useEffect, useRef, useState } from 'react'
import { amount, bytes, slotAmount, slotName } from '@/design/amounts'
import { Bone } from '@/design/parts'
import { t } from '@/words'
import type { Kernel, Stat } from './queries'

const Chart = lazy(() => import('./Charts'))

/** How much is kept while the page is open. */
const most = 720

export interface Sample {
  at: number
  values: Record<string, number | null>
}

/** Adds the figures of the kernels of a session; a figure that a kernel lacks makes the sum unknown. */
export function sumOf(stats: Stat[], name: string): number | null {
  let sum = 0
  for (const s of stats) {
    const v = amount(s[name]?.current)
    if (v === null) return null
    sum += v
  }
  return stats.length ? sum : null
}

/** Percent of all cores that the session has. */
export function cpuPercent(stats: Stat[]): number | null {
  const used = sumOf(stats, 'cpu_util')
  const cores = sumOf(stats, 'cores')
  return used === null || !cores ? used : used / cores
}

const figures: { id: string; of: (s: Stat[]) => number | null; format: (n: number) => string }[] = [
  { id: 'cpu', of: (s) => cpuPercent(s), format: (n) => `${n < 10 ? n.toFixed(1).replace(/\.0$/, '') : Math.round(n)} %` },
  { id: 'mem', of: (s) => sumOf(s, 'mem'), format: (n) => bytes(n) },
  { id: 'net', of: () => null, format: (n) => `${bytes(n)}/s` }, // a rate: see below
]

/** The rate of a total that grows, a second; null where there is no telling. */
export function rateOf(before: { at: number; total: number | null } | null, at: number, total: number | null): number | null {
  if (!before || before.total === null || total === null || at <= before.at || total < before.total) return null
  return (total - before.total) / (at - before.at)
}

function add(a: number | null, b: number | null) {
  return a === null || b === null ? null : a + b
}

/** What a session uses and used: CPU, memory, accelerators and network, with the limit as a line. */
export function Use({
  kernels,
  at,
  limits,
  history,
}: {
  kernels: Kernel[]
  at: number
  limits: Record<string, string>
  history?: Sample[]
}) {
  const kept = useRef<Sample[]>([])
  const passed = useRef<{ at: number; total: number | null } | null>(null)
  const [, draw] = useState(0)
  const stats = kernels.filter((k) => k.status === 'RUNNING').map((k) => k.stat)
  const named = [...stats.flatMap((s) => Object.keys(s)), ...(history ?? []).flatMap((s) => Object.keys(s.values))]
  const gpus = [...new Set(named)].filter((k) => /^(?!cpu|mem|io|net).*_(util|mem)$/.test(k)).sort()
  const all = [
    ...figures,
    ...gpus.map((g) => ({
      id: g,
      of: (s: Stat[]) => sumOf(s, g),
      format: (n: number) => (g.endsWith('_mem') ? bytes(n) : `${Math.round(n)} %`),
    })),
  ]
  useEffect(() => {
    const values: Record<string, number | null> = {}
    for (const f of all) values[f.id] = f.of(stats)
    // Agents tell how many bytes passed since the start of each kernel.
    const total = add(sumOf(stats, 'net_rx'), sumOf(stats, 'net_tx'))
    values['net'] = rateOf(passed.current, at / 1000, total)
    passed.current = { at: at / 1000, total }
    if (!stats.length) return // it has ended: its history is all
    kept.current = [...kept.current, { at: at / 1000, values }].slice(-most)
    draw((n) => n + 1)
    // A sample for each answer of the cluster.
    // eslint-disable-next-line react-hooks/exhaustive-deps
  }, [at])
  const first = kept.current[0]?.at ?? Infinity
  const samples = [...(history ?? []).filter((s) => s.at < first), ...kept.current]
  const limit = (id: string) => (id === 'cpu' ? 100 : id === 'mem' ? amount(limits['mem']) : null)
  return (
    <div className="stack">
      {all.map((f) => {
        const last = stats.length ? samples[samples.length - 1]?.values[f.id] : null
        const series = { at: samples.map((s) => s.at), values: samples.map((s) => s.values[f.id] ?? null) }
        return (
          <div key={f.id} className="stack tight">
            <div className="row small">
              <span className="grow soft">
                {f.id === 'net' ? t('use.net') : f.id === 'cpu' || f.id === 'mem' ? slotName(f.id) : f.id.replace('_', ' ')}
              </span>
              <span>
                {last === null || last === undefined ? '–' : f.format(last)}
                {f.id === 'cpu' && limits['cpu'] ? (
                  <span className="dim"> {t('use.of', { all: `${slotAmount('cpu', limits['cpu'])} CPU` })}</span>
                ) : null}
                {f.id === 'mem' && limits['mem'] ? <span className="dim"> {t('use.of', { all: bytes(limits['mem']) })}</span> : null}
              </span>
            </div>
            <Suspense fallback={<Bone h={84} />}>
              <Chart series={series} limit={limit(f.id)} format={f.format} />
            </Suspense>
          </div>
        )
      })}
    </div>
  )
}
