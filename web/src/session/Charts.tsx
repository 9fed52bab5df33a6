import { useEffect, useRef } from 'react'
import uPlot from 'uplot'
import 'uplot/dist/uPlot.min.css'

export interface Series {
  at: number[]
  values: (number | null)[]
}

const hours = new Intl.DateTimeFormat('en-GB', { hour: '2-digit', minute: '2-digit' })

/** A small chart over time. What was not measured is a gap, a limit is a line. */
export default function Chart({
  series,
  limit,
  format,
  height = 84,
}: {
  series: Series
  limit?: number | null
  format: (n: number) => string
  height?: number
}) {
  const box = useRef<HTMLDivElement>(null)
  const plot = useRef<uPlot | null>(null)
  const data = useRef<uPlot.AlignedData>([[], []])
  data.current = [series.at, series.values, ...(limit ? [series.at.map(() => limit)] : [])] as uPlot.AlignedData
  const shape = limit ? 3 : 2
  useEffect(() => {
    const el = box.current
    if (!el) return
    const css = getComputedStyle(document.documentElement)
    const of = (n: string) => css.getPropertyValue(n).trim()
    const draw = () => {
      plot.current?.destroy()
      const accent = of('--b-accent')
      const axis = {
        stroke: of('--b-ink-3'),
        grid: { stroke: of('--b-line'), width: 1 },
        ticks: { show: false },
        font: `11px ${of('--b-font')}`,
      }
      plot.current = new uPlot(
        {
          width: Math.max(120, el.clientWidth),
          height,
          legend: { show: false },
          cursor: { y: false, points: { size: 5 } },
          padding: [6, 4, 0, 0],
          // A single point is shown within its two minutes, not within years.
          scales: {
            x: { range: (_u, min, max) => (min === null || max === null ? [0, 1] : [Math.min(min, max - 120), max]) },
            y: { range: (_u, _min, max) => [0, Math.max(limit ?? 0, max ?? 0) * 1.08 || 1] },
          },
          axes: [
            {
              ...axis,
              size: 20,
              space: 70,
              incrs: [60, 120, 300, 600, 1800, 3600, 7200, 21600, 86400],
              grid: { show: false },
              values: (_u, at) => at.map((s) => hours.format(s * 1000)),
            },
            { ...axis, size: 58, splits: (_u, _i, _min, max) => [0, limit ?? max / 1.08], values: (_u, v) => v.map((x) => format(x)) },
          ],
          series: [
            {},
            { stroke: accent, width: 1.5, fill: accent + '1f', points: { show: false }, spanGaps: false },
            ...(shape === 3 ? [{ stroke: of('--b-ink-3'), width: 1, dash: [4, 4], points: { show: false } }] : []),
          ],
        },
        data.current,
        el,
      )
    }
    draw()
    const watch = new ResizeObserver(() => plot.current?.setSize({ width: Math.max(120, el.clientWidth), height }))
    watch.observe(el)
    const scheme = new MutationObserver(draw)
    scheme.observe(document.documentElement, { attributeFilter: ['data-mantine-color-scheme'] })
    return () => {
      watch.disconnect()
      scheme.disconnect()
      plot.current?.destroy()
      plot.current = null
    }
    // The format and the limit belong to what the chart is of, and do not change while it is shown.
    // eslint-disable-next-line react-hooks/exhaustive-deps
  }, [height, shape])
  useEffect(() => plot.current?.setData(data.current), [series, limit])
  return <div ref={box} className="chart" />
}
