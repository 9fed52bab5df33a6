import { expect, test } from 'vitest'
import { months, rounded } from './trend'
import { reportCSV } from './UsagePage'

test('what is small is not nothing', () => {
  expect(['0', '0.004', '3.14159', '12345.6'].map(rounded)).toEqual(['0', '< 0.01', '3.14', (12346).toLocaleString()])
})

test('months go back over the turn of a year', () => {
  const all = months(new Date('2026-02-28T23:00:00Z'))
  expect(all.slice(0, 3).map((m) => m.value)).toEqual(['202602', '202601', '202512'])
  expect([all.length, all[11]?.label]).toEqual([12, '2025-03'])
})

test('a report keeps exact hours, and names are no formulas', () => {
  const slot = (slot: string, hours: string) => ({ slot, hours, amount: '0' })
  const csv = reportCSV({
    since: '',
    until: '',
    now: '',
    by: 'project',
    rows: [
      { key: 'k1', name: '=cmd()', domain_name: 'd', slots: [slot('mem', '2.000001'), slot('cpu', '0.004000')] },
      { key: 'k2', name: 'b', slots: [], cost: '1.5' },
    ],
  })
  expect(csv).toBe("project,key,domain_name,cpu_hours,mem_hours,cost\r\n'=cmd(),k1,d,0.004000,2.000001,\r\nb,k2,,,,1.5\r\n")
})
