import { expect, test } from 'vitest'
import { seriesOf } from './ClusterUse'

test('what is not known of the cluster is a gap, never zero', () => {
  const h = {
    step_seconds: 60,
    series: [
      {
        points: [
          { at: '2026-01-31T08:00:00Z', mem: 5, cpu_util: 0 },
          { at: '2026-01-31T08:01:00Z', cpu_util: 250 },
          { at: '2026-01-31T08:05:00Z', mem: 7 },
        ],
      },
    ],
  }
  const began = Date.parse('2026-01-31T08:00:00Z') / 1000
  expect(seriesOf(h, (p) => p.mem)).toEqual({ at: [began, began + 60, began + 120, began + 300], values: [5, null, null, 7] })
  expect(seriesOf(h, (p) => p.cpu_util).values).toEqual([0, 250, null, null])
  expect(seriesOf({ step_seconds: 60, series: [{ points: [] }] }, (p) => p.mem)).toEqual({ at: [], values: [] })
})
