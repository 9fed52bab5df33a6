import { screen } from '@testing-library/react'
import userEvent from '@testing-library/user-event'
import { expect, test } from 'vitest'
import type { AgentSession } from '@/api/types'
import { show } from '../../test/wrap'
import { Devices } from './Devices'
import type { Agent, Device } from './queries'
import { linksOf, socketsOf } from './topology'

const device = (Slot: string, ID: string, NUMA?: number, more: Partial<Device> = {}): Device => ({
  Slot,
  ID,
  Healthy: true,
  Capacity: 1000,
  ...(NUMA === undefined ? {} : { NUMA }),
  ...more,
})
const session = (name: string, devices: AgentSession['devices']) => ({ id: name, name, user_email: `${name}@x`, devices }) as AgentSession

// Two sockets of two cores and a GPU each, memory on one of them, and a device of which nobody knows where it is.
const hardware = [
  device('cuda.device', '10', 1, { Links: { '2': 2, '10': 1, gone: 1 }, Model: 'A100' }),
  device('cuda.device', '2', 0, { Links: { '10': 2, x: 16 } }),
  device('cpu', '10', 1),
  device('cpu', '2', 1),
  device('cpu', '0', 0),
  device('cpu', '1', 0, { Healthy: false }),
  device('mem', 'root', -1, { Capacity: 4000 * 2 ** 30 }),
  device('rngd.device', 'x', undefined, { Links: null }),
]
const work = [
  session('train', { cpu: { '0': '1', '2': '1' }, 'cuda.device': { '2': '0.5' }, mem: { root: String(2 ** 30) } }),
  session('eval', { 'cuda.device': { '2': '0.25' }, mem: { root: String(2 ** 30) } }),
  session('of an older manager', undefined),
]

test('devices stand on their NUMA nodes in order, with who holds how much of them', () => {
  const sockets = socketsOf({ hardware }, work)
  expect(sockets.map((s) => s.numa)).toEqual([0, 1, -1])
  expect(sockets[1]!.cores.map((c) => [c.device.ID, c.part])).toEqual([
    ['2', 1],
    ['10', 0],
  ])
  const gpu = sockets[0]!.others[0]!
  expect([gpu.part, gpu.holders.map((h) => [h.session.name, h.part])]).toEqual([
    0.75,
    [
      ['train', 0.5],
      ['eval', 0.25],
    ],
  ])
  expect(sockets[2]!.memory[0]!.part).toBe(0.5)
  expect(sockets[2]!.others.map((d) => d.device.ID)).toEqual(['x'])
  expect(socketsOf({ hardware: [] }, work)).toEqual([])
  const small = socketsOf({ hardware: [device('cpu', '0', 0), device('mem', 'root', -1)] }, [])
  expect(small.map((s) => [s.numa, s.cores.length, s.memory.length])).toEqual([[0, 1, 1]])
})

test('a link stands once, and only where devices are nearer than their node makes them', () => {
  expect(linksOf({ hardware }).map((l) => [l.from.ID, l.to.ID, l.distance])).toEqual([['10', '2', 2]])
})

test('a session that is chosen shows where it is', async () => {
  const agent = { id: 'a', hardware, devices: {}, node: {} } as unknown as Agent
  show(<Devices of={agent} sessions={work} />)
  expect(screen.getByRole('region', { name: 'NUMA node 0' }).textContent).toContain('1 of 2 cores held')
  expect(screen.getByText('train (50 %), eval (25 %)')).toBeTruthy()
  expect(screen.getByText('A100')).toBeTruthy()
  expect(screen.getByText('direct link')).toBeTruthy()
  expect(screen.queryByRole('button', { name: 'of an older manager' })).toBeNull()
  expect(document.querySelectorAll('.mine').length).toBe(0)
  await userEvent.click(screen.getByRole('button', { name: 'eval' }))
  expect([...document.querySelectorAll('.mine')].map((e) => e.className.replace(' mine', ''))).toEqual(['device', 'meter'])
})
