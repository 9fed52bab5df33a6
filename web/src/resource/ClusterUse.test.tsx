import { screen } from '@testing-library/react'
import { expect, test } from 'vitest'
import { answering, refusing, show } from '../../test/wrap'
import { ClusterUse } from './ClusterUse'

test('a cluster of which nothing was measured says so', async () => {
  const asked = answering(() => ({ step_seconds: 60, series: [{ points: [] }] }))
  show(<ClusterUse />)
  expect(await screen.findByText(/Nothing has been measured yet/)).toBeTruthy()
  expect(asked.map((a) => [a.method, a.url])).toEqual([['GET', '/func/metrics/cluster']])
})

test('a refusal is shown with its reason', async () => {
  answering(() => refusing(403, { type: 'x/denied', title: 'Denied', msg: 'you may not look at the use of agents' }))
  show(<ClusterUse />)
  expect(await screen.findByText(/you may not look at the use of agents/)).toBeTruthy()
})
