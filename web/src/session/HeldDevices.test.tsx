import { screen } from '@testing-library/react'
import userEvent from '@testing-library/user-event'
import { afterEach, expect, test, vi } from 'vitest'
import { answering, refusing, show } from '../../test/wrap'
import { busyWords, HeldDevices, rangesOf } from './HeldDevices'

afterEach(() => vi.unstubAllGlobals())

const kernel = (clusterHostname: string, devices: unknown[], why = '') => ({
  kernelId: clusterHostname,
  clusterHostname,
  status: 'RUNNING',
  agent: 'i-1',
  slots: {},
  devices,
  why,
})
const cores = [
  { slot: 'cpu', id: '0', amount: '1' },
  { slot: 'cpu', id: '1', amount: '1' },
  { slot: 'mem', id: 'root', amount: String(4 * 2 ** 30) },
]

test('what a session holds is told with why these, how busy they are, and what is broken', async () => {
  answering(() => ({
    kernels: [
      kernel(
        'main1',
        [
          {
            slot: 'cuda.shares',
            id: 'GPU-0',
            amount: '0.5',
            model: 'A100',
            numa: 0,
            healthy: true,
            use: { cuda_util: 0, cuda_mem: 2 ** 30 },
          },
          { slot: 'cuda.device', id: 'GPU-1', amount: '1', model: '<img src=x>', healthy: false },
          { slot: 'cuda.device', id: 'GPU-2', amount: '1' },
          ...cores,
        ],
        'GPU-0 and GPU-1 are joined by a direct link',
      ),
    ],
  }))
  show(<HeldDevices session="s" name="train" />)
  expect(await screen.findByText('GPU-0 and GPU-1 are joined by a direct link')).toBeTruthy()
  expect(screen.getByText('half a GPU · NUMA node 0')).toBeTruthy()
  expect(screen.getByText('0 % in use · 1 GiB')).toBeTruthy()
  expect(screen.getAllByText('broken')).toHaveLength(1)
  expect(screen.getByText(/<img src=x>/)).toBeTruthy()
  expect(screen.getByText('1 GPU · its agent does not list it any more')).toBeTruthy()
  expect(screen.getAllByText('not measured')).toHaveLength(2)
  expect(screen.getByText('2 cores (0–1) · 4 GiB')).toBeTruthy()
  expect(screen.queryByText('main1')).toBeNull()
})

test('containers of a cluster stand apart; those that hold nothing are left out', async () => {
  answering(() => ({ kernels: [kernel('main1', cores), kernel('sub1', cores), kernel('sub2', [])] }))
  show(<HeldDevices session="s" name="train" />)
  expect(await screen.findByText('main1')).toBeTruthy()
  expect(screen.getByText('sub1')).toBeTruthy()
  expect(screen.queryByText('sub2')).toBeNull()
})

test('nothing held teaches the command line; an error says what to do', async () => {
  answering(() => ({ kernels: [] }))
  const first = show(<HeldDevices session="s" name="train" />)
  expect(await screen.findByText('berth session info train')).toBeTruthy()
  first.unmount()
  let bad = true
  answering(() => (bad ? refusing(503, { title: 'The database does not answer', next: 'wait' }) : { kernels: [kernel('main1', cores)] }))
  show(<HeldDevices session="s" name="train" />)
  const again = await screen.findByRole('button', { name: 'Try again' })
  bad = false
  await userEvent.click(again)
  expect(await screen.findByText('2 cores (0–1) · 4 GiB')).toBeTruthy()
})

test('what is not measured is not zero, and ids that follow each other are shorter', () => {
  expect(busyWords({ slot: 'cuda.device' })).toBe('')
  expect(busyWords({ slot: 'cuda.device', use: { rngd_util: 3 } })).toBe('')
  expect(busyWords({ slot: 'cuda.device', use: { cuda_util: 79.6 } })).toBe('80 % in use')
  expect(rangesOf(['0', '1', '2', '8', '10', '11'])).toBe('0–2, 8, 10–11')
  expect(rangesOf(['x', 'y'])).toBe('x, y')
  expect(rangesOf([])).toBe('')
})
