import { screen } from '@testing-library/react'
import userEvent from '@testing-library/user-event'
import { afterEach, expect, test, vi } from 'vitest'
import type { AgentSession } from '@/api/types'
import { showAt } from '../../test/wrap'
import { Devices } from './Devices'
import type { Agent, Device } from './queries'
import { cardsOf, joinedOf, linksOf, socketsOf } from './topology'

afterEach(() => vi.unstubAllGlobals())

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

test('hardware that fills several slots stands once, with what its holders have of it and why it is broken', () => {
  const both = [
    device('cuda.shares', 'b', 0, { PCI: '0000:0f:00.0', Healthy: false, Problem: 'XID 79: it fell off the bus' }),
    device('cuda.device', 'b', 0, { PCI: '0000:0f:00.0' }),
    device('cuda.shares', 'a', 0, { PCI: '0000:07:00.0' }),
    device('rngd.device', 'a', 0),
  ]
  const cards = cardsOf({ hardware: both }, [session('x', { 'cuda.shares': { a: '0.25', b: '0.75' }, 'cuda.device': { b: '1' } })])
  expect(cards.map((c) => [c.label, c.device.ID, c.slots, c.part, c.healthy, c.problem])).toEqual([
    ['RNGD 0', 'a', ['rngd.device'], 0, true, ''],
    ['GPU 0', 'a', ['cuda.shares'], 0.25, true, ''],
    ['GPU 1', 'b', ['cuda.device', 'cuda.shares'], 1, false, 'XID 79: it fell off the bus'],
  ])
  expect(cards[2]!.holders).toHaveLength(1)
})

test('links are told in few lines: groups of which each is joined with each other, and the pairs that are left', () => {
  const named = (id: string, links: Record<string, number>) => device('cuda.device', id, 0, { Links: links })
  const lines = (hardware: Device[]) =>
    joinedOf({ hardware }, cardsOf({ hardware }, [])).map((l) => [l.way, l.cards.map((c) => c.label).join()])
  // All of three behind one switch, two of them joined directly, a third joined with one of them.
  expect(
    lines([
      named('0', { '1': 2, '3': 8 }),
      named('1', { '0': 2, '2': 2 }),
      named('2', { '1': 2 }),
      named('3', { '4': 4, '5': 4 }),
      named('4', { '5': 4 }),
      named('5', {}),
    ]),
  ).toEqual([
    ['direct', 'GPU 0,GPU 1'],
    ['direct', 'GPU 1,GPU 2'],
    ['switch', 'GPU 3,GPU 4,GPU 5'],
  ])
  // Every GPU with every other, and the parts of a card.
  const all = Array.from({ length: 8 }, (_, i) =>
    named(String(i), Object.fromEntries([0, 1, 2, 3, 4, 5, 6, 7].filter((j) => j !== i).map((j) => [j, 2]))),
  )
  expect(lines(all)).toEqual([['direct', 'GPU 0,GPU 1,GPU 2,GPU 3,GPU 4,GPU 5,GPU 6,GPU 7']])
  expect(lines([named('m0', { m1: 1 }), named('m1', { m0: 1, gone: 1 })])).toEqual([['card', 'GPU 0,GPU 1']])
  expect(lines([])).toEqual([])
})

test('a session that is chosen shows where it is, and who holds a device is a way to the session', async () => {
  const agent = { id: 'a', hardware, devices: {}, node: {} } as unknown as Agent
  showAt(<Devices of={agent} sessions={work} />)
  expect((await screen.findByRole('region', { name: 'NUMA node 0' })).textContent).toContain('1 of 2 cores held')
  expect(screen.getByRole('link', { name: 'train' }).getAttribute('href')).toBe('/sessions/train')
  expect(screen.getByRole('link', { name: 'train' }).parentElement?.parentElement?.textContent).toBe('train (50 %), eval (25 %)')
  expect(screen.getByText(/A100/)).toBeTruthy()
  expect(screen.getByText('direct link')).toBeTruthy()
  expect(screen.queryByRole('button', { name: 'of an older manager' })).toBeNull()
  expect(document.querySelectorAll('.mine').length).toBe(0)
  await userEvent.click(screen.getByRole('button', { name: 'eval' }))
  expect([...document.querySelectorAll('.mine')].map((e) => e.className.replace(' mine', ''))).toEqual(['device', 'meter'])
})

test('a broken device says so in words, with the reason, and nobody can have it', async () => {
  const ill = [
    device('cuda.device', 'x', 0, { Healthy: false, Problem: '<b>XID 79</b>', Isolation: 'hard', Memory: 2 ** 30 }),
    device('cuda.device', 'y', 0, { Healthy: false }),
  ]
  showAt(<Devices of={{ id: 'a', hardware: ill, devices: {}, node: {} } as unknown as Agent} sessions={[]} />)
  expect(await screen.findByText('<b>XID 79</b>')).toBeTruthy()
  expect(screen.getByText('The agent does not say why.')).toBeTruthy()
  expect(screen.getAllByText('broken')).toHaveLength(2)
  expect(screen.getAllByText('nobody can have it')).toHaveLength(2)
  expect(screen.getByText('1 GiB · GPU · shared by hardware')).toBeTruthy()
  expect(screen.getAllByText('not measured')).toHaveLength(2)
})
