import { screen } from '@testing-library/react'
import userEvent from '@testing-library/user-event'
import { expect, test, vi } from 'vitest'
import type { UsageSeries } from '@/api/types'
import { show } from '../../test/wrap'
import { figureOf, figuresOf, linesOf, periodOf, seriesCSV, sumOf } from './trend'
import { UsageTrend } from './UsageTrend'

const row = (key: string, name: string, hours: Record<string, string>, cost?: string) => ({
  key,
  name,
  domain_name: 'lab',
  slots: Object.entries(hours).map(([slot, h]) => ({ slot, hours: h, amount: '0' })),
  ...(cost ? { cost } : {}),
})
const report = (day: string, rows: ReturnType<typeof row>[]) => ({ since: `${day}T00:00:00+00:00`, until: '', now: '', by: 'user', rows })
const series: UsageSeries = {
  step: 'day',
  reports: [
    report('2026-03-01', [row('u1', 'ada', { cpu: '2.000001', mem: '1' }, '0.5'), row('u2', '=cmd()', { cpu: '1' })]),
    report('2026-03-02', []),
    report('2026-03-03', [row('u2', '=cmd()', { cpu: '4' })]),
  ],
}

test('who held most comes first, and steps without use are nothing', () => {
  expect(figuresOf(series)).toEqual(['cost', 'cpu', 'mem'])
  const lines = linesOf(series, 'cpu')
  expect(lines.map((l) => [l.name, l.values])).toEqual([
    ['=cmd()', [1, 0, 4]],
    ['ada', [2.000001, 0, 0]],
  ])
  expect(sumOf(lines, 3)).toEqual([3.000001, 0, 4])
})

test('a cost that nobody knows is not zero', () => {
  expect(figureOf(row('u2', 'b', { cpu: '1' }), 'cost')).toBeNull()
  expect(linesOf(series, 'cost').map((l) => [l.name, l.known])).toEqual([
    ['ada', true],
    ['=cmd()', false],
  ])
})

test('the table for spreadsheets has a line for each step, and names are no formulas', () => {
  expect(seriesCSV(series)).toBe(
    'day,user,key,domain_name,cpu_hours,mem_hours,cost\r\n2026-03-01,ada,u1,lab,2.000001,1,0.5\r\n' +
      "2026-03-01,'=cmd(),u2,lab,1,,\r\n2026-03-03,'=cmd(),u2,lab,4,,\r\n",
  )
})

test('a year is twelve whole months, over the turn of the year too', () => {
  expect(periodOf('202603', new Date('2026-03-31T23:59:00Z'))).toEqual({ query: { month: '202603' }, step: 'day' })
  expect(periodOf('year', new Date('2026-02-28T23:59:00Z'))).toEqual({
    query: { since: '2025-03-01T00:00:00Z', until: '2026-03-01T00:00:00Z' },
    step: 'month',
  })
})

test('the chart shows all together, and one row alone after a click', async () => {
  vi.spyOn(Element.prototype, 'clientHeight', 'get').mockReturnValue(400)
  vi.spyOn(Element.prototype, 'clientWidth', 'get').mockReturnValue(800)
  const set = vi.fn()
  const part = (one?: string) => (
    <UsageTrend by="user" series={series} error={null} retry={() => {}} figure="cpu" one={one} cli="berth usage report" set={set} />
  )
  const { again } = show(part())
  expect(screen.getByRole('img', { name: 'All together: CPU (h) over time' }).querySelectorAll('rect')).toHaveLength(3)
  await userEvent.click(await screen.findByText('ada'))
  expect(set).toHaveBeenCalledWith({ of: 'u1' })
  again(part('u1'))
  expect(screen.getAllByRole('img', { name: 'ada: CPU (h) over time' })[0]!.textContent).toContain('2026-03-01: 2')
  vi.restoreAllMocks()
})

test('a period without use says so', () => {
  show(
    <UsageTrend
      by="user"
      series={{ step: 'day', reports: [] }}
      error={null}
      retry={() => {}}
      figure={undefined}
      one={undefined}
      cli="berth usage report"
      set={() => {}}
    />,
  )
  expect(screen.getByText('Nothing was held in this time')).toBeTruthy()
})
