import type { UsageReport, UsageRow, UsageSeries } from '@/api/types'
import { order } from '@/design/amounts'
import { csvRow } from '@/design/save'

/** What a chart of use shows of a row: the cost, or the hours of a slot. Null is not known, for example where nothing has a price. */
export function figureOf(r: { cost?: string | null; slots?: UsageRow['slots'] }, figure: string): number | null {
  const text = figure === 'cost' ? r.cost : r.slots?.find((s) => s.slot === figure)?.hours
  return text === undefined || text === null ? null : Number(text)
}

/** The figures that a series has: the slots, and the cost where something has a price. */
export function figuresOf(s: UsageSeries): string[] {
  const slots = order([...new Set(s.reports.flatMap((r) => r.rows.flatMap((row) => row.slots.map((u) => u.slot))))])
  return s.reports.some((r) => r.rows.some((row) => row.cost)) ? ['cost', ...slots] : slots
}

/** One project, user, domain or group over all steps. */
export interface Line {
  key: string
  name: string
  domain: string
  /** One value for each step. In a step in which nothing was held it is 0. */
  values: number[]
  total: number
  /** Whether the figure is known at all. */
  known: boolean
}

/** Everybody over all steps, who held most first. */
export function linesOf(s: UsageSeries, figure: string): Line[] {
  const lines = new Map<string, Line>()
  s.reports.forEach((r, i) => {
    for (const row of r.rows) {
      const id = `${row.domain_name ?? ''}/${row.key}`
      let line = lines.get(id)
      if (!line)
        lines.set(
          id,
          (line = { key: row.key, name: row.name, domain: row.domain_name ?? '', values: s.reports.map(() => 0), total: 0, known: false }),
        )
      const v = figureOf(row, figure)
      if (v === null) continue
      line.values[i] = (line.values[i] ?? 0) + v
      line.total += v
      line.known = true
    }
  })
  return [...lines.values()].sort((a, b) => b.total - a.total || a.name.localeCompare(b.name))
}

/** All lines together. */
export function sumOf(lines: Line[], steps: number): number[] {
  return Array.from({ length: steps }, (_, i) => lines.reduce((n, l) => n + (l.values[i] ?? 0), 0))
}

/** The name of a step: a day, or a month. */
export function stepName(r: UsageReport, step: string): string {
  return r.since.slice(0, step === 'month' ? 7 : 10)
}

/** A series for spreadsheets: a line for each step and row, with exact hours. */
export function seriesCSV(s: UsageSeries): string {
  const slots = figuresOf(s).filter((f) => f !== 'cost')
  const costs = figuresOf(s).includes('cost')
  const by = s.reports[0]?.by ?? 'name'
  const head = [s.step, by, 'key', 'domain_name', ...slots.map((x) => `${x}_hours`), ...(costs ? ['cost'] : [])]
  const body = s.reports.flatMap((r) =>
    r.rows.map((row) =>
      csvRow([
        stepName(r, s.step),
        row.name,
        row.key,
        row.domain_name ?? '',
        ...slots.map((x) => row.slots.find((u) => u.slot === x)?.hours ?? ''),
        ...(costs ? [row.cost ?? ''] : []),
      ]),
    ),
  )
  return csvRow(head) + body.join('')
}

/** The period that an address names: a month day by day, or the last twelve months. */
export function periodOf(month: string, now: Date): { query: Record<string, string>; step: 'day' | 'month' } {
  if (month !== 'year') return { query: { month }, step: 'day' }
  const from = new Date(Date.UTC(now.getUTCFullYear(), now.getUTCMonth() - 11, 1))
  const until = new Date(Date.UTC(now.getUTCFullYear(), now.getUTCMonth() + 1, 1))
  const text = (d: Date) => d.toISOString().replace('.000Z', 'Z')
  return { query: { since: text(from), until: text(until) }, step: 'month' }
}

/** The last twelve months, the newest first, as the API names them. */
export function months(now: Date): { value: string; label: string }[] {
  return Array.from({ length: 12 }, (_, i) => {
    const m = new Date(Date.UTC(now.getUTCFullYear(), now.getUTCMonth() - i, 1))
    const text = m.toISOString()
    return { value: text.slice(0, 4) + text.slice(5, 7), label: text.slice(0, 7) }
  })
}

/** Hours and costs as people read them; what is small is not nothing. */
export function rounded(text: string): string {
  const n = Number(text)
  if (n > 0 && n < 0.01) return '< 0.01'
  return n.toLocaleString(undefined, { maximumFractionDigits: n < 10 ? 2 : 0 })
}
