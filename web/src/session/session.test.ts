import { expect, test } from 'vitest'
import { blank, bodyOf, cliOf, faultsOf, nameFor, type Draft } from './draft'
import { filterOf } from './queries'
import { stepsOf } from './timeline'
import { samplesOf } from './history'
import { cpuPercent, rateOf, sumOf } from './Use'

const draft: Draft = { ...blank, name: 'calm-pier-10', image: 'berth/python:3.11', slots: { cpu: 2, mem: 4 * 2 ** 30 } }

test('filters become conditions that nobody can break out of', () => {
  expect(filterOf({}, 'me@x')).toEqual({
    filter: '',
    status: 'PENDING,SCHEDULED,PREPARING,PULLING,PREPARED,CREATING,RUNNING,RESTARTING,TERMINATING',
  })
  expect(filterOf({ owner: 'me', status: 'running', q: '50%_"x' }, 'me@x')).toEqual({
    filter: 'name ilike "%50\\\\%\\\\_\\"x%" & user_email == "me@x"',
    status: 'RUNNING',
  })
  expect(filterOf({ status: 'all' }, '').status).toBe('')
})

test('a draft says what is wrong before it is sent', () => {
  expect(faultsOf(draft)).toEqual({})
  expect(
    Object.keys(
      faultsOf({
        ...draft,
        name: '-x',
        image: '',
        type: 'batch',
        env: [{ name: '1A', value: 'x' }],
        mounts: [
          { id: '1', name: 'a', target: '' },
          { id: '2', name: 'b', target: 'a' },
        ],
      }),
    ),
  ).toEqual(['name', 'image', 'command', 'env', 'mounts'])
})

test('a draft becomes a request and the same command', () => {
  const d: Draft = {
    ...draft,
    type: 'batch',
    command: "python3 'a b.py'",
    mounts: [
      { id: '1', name: 'data', target: '' },
      { id: '2', name: 'out', target: '/mnt' },
    ],
    env: [{ name: 'A', value: 'x y' }],
    clusterSize: 2,
  }
  expect(bodyOf(d, 'team')).toEqual({
    name: 'calm-pier-10',
    image: 'berth/python:3.11',
    type: 'batch',
    group: 'team',
    enqueueOnly: true,
    reuseIfExists: false,
    startupCommand: "python3 'a b.py'",
    clusterSize: 2,
    clusterMode: 'single-node',
    config: { resources: { cpu: '2', mem: '4294967296' }, environ: { A: 'x y' }, mounts: ['data', 'out'], mount_map: { out: '/mnt' } },
  })
  expect(cliOf(d)).toBe(
    "berth session create berth/python:3.11 --name calm-pier-10 -r cpu=2 -r mem=4g -v data -v out:/mnt -e 'A=x y' --cluster-size 2 --batch 'python3 '\\''a b.py'\\'''",
  )
})

test('names that are proposed are allowed', () => {
  for (let i = 0; i < 500; i++) expect(faultsOf({ ...draft, name: nameFor(i / 500) })).toEqual({})
  expect(faultsOf({ ...draft, name: nameFor(0.999999) })).toEqual({})
})

test('the steps of a session, with the one that goes on', () => {
  const h = { RUNNING: '2026-01-01T00:00:05Z', PENDING: '2026-01-01T00:00:00Z', SCHEDULED: '2026-01-01T00:00:02Z' }
  const now = Date.parse('2026-01-01T00:01:05Z')
  expect(stepsOf(h, now).map((s) => [s.status, s.ms])).toEqual([
    ['PENDING', 2000],
    ['SCHEDULED', 3000],
    ['RUNNING', 60000],
  ])
  expect(stepsOf({ ...h, TERMINATED: '2026-01-01T00:00:10Z' }, now).at(-1)).toMatchObject({ status: 'TERMINATED', ms: null })
})

test('figures that a kernel lacks make the sum unknown', () => {
  const a = { cpu_util: { current: '150' }, cores: { current: '2' } }
  expect(cpuPercent([a])).toBe(75)
  expect(sumOf([a, {}], 'cpu_util')).toBeNull()
  expect(sumOf([], 'mem')).toBeNull()
})

test('a total that grows has a rate, one that began anew or is unknown has none', () => {
  expect(rateOf({ at: 10, total: 100 }, 20, 300)).toBe(20)
  expect(rateOf({ at: 10, total: 100 }, 20, 50)).toBeNull()
  expect(rateOf({ at: 10, total: null }, 20, 50)).toBeNull()
  expect(rateOf({ at: 10, total: 100 }, 10, 150)).toBeNull()
  expect(rateOf(null, 20, 50)).toBeNull()
})

test('the history of a session adds its kernels up, step by step', () => {
  const at = (m: number) => new Date(Date.UTC(2026, 0, 1, 0, m)).toISOString()
  const h = {
    from: at(0),
    until: at(3),
    step_seconds: 60,
    series: [
      {
        kernel_id: 'a',
        points: [
          { at: at(1), cpu_util: 100, mem: 5, net_rx: 1, net_tx: 2, devices: { cuda_util: 50 } },
          { at: at(2), mem: 6 },
        ],
      },
      {
        kernel_id: 'b',
        points: [
          { at: at(0), cpu_util: 50 },
          { at: at(1), cpu_util: 100, mem: 1, net_rx: 4 },
        ],
      },
    ],
  }
  expect(samplesOf(h, 2)).toEqual([
    { at: Date.parse(at(0)) / 1000, values: { cpu: 25 } },
    { at: Date.parse(at(1)) / 1000, values: { cpu: 100, mem: 6, net: 3, cuda_util: 50 } },
    { at: Date.parse(at(2)) / 1000, values: { mem: 6 } },
  ])
  expect(samplesOf({ ...h, series: [] }, null)).toEqual([])
})
