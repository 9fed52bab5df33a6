import { screen, waitFor } from '@testing-library/react'
import userEvent from '@testing-library/user-event'
import { afterEach, expect, test, vi } from 'vitest'
import { answering, show } from '../../test/wrap'
import { Agents } from './ClusterPage'
import { agentFilter } from './queries'

afterEach(() => {
  vi.unstubAllGlobals()
  vi.restoreAllMocks()
})

const agent = (n: number) => ({
  id: `i-${n}`,
  status: 'ALIVE',
  architecture: 'x86_64',
  scaling_group: 'default',
  schedulable: true,
  available_slots: '{"cpu":"8","mem":"17179869184"}',
  occupied_slots: '{"cpu":"2"}',
  live_stat: null,
  hardware_metadata: null,
  conditions: null,
  container_count: 3,
})

/** A cluster of so many agents. */
function cluster(total: number) {
  return answering((a) => {
    const { limit, offset } = (a.body as { variables: { limit: number; offset: number } }).variables
    const items = Array.from({ length: Math.max(0, Math.min(limit, total - offset)) }, (_, i) => agent(offset + i))
    return { data: { agent_list: { total_count: total, items } } }
  })
}

test('few agents are tiles without anything to choose', async () => {
  cluster(2)
  show(<Agents search={{}} set={() => {}} onOpen={() => {}} onDrain={() => {}} onUncordon={() => {}} />)
  expect(await screen.findByText('i-1')).toBeTruthy()
  expect(document.querySelectorAll('.tile').length).toBe(2)
  expect(screen.queryByRole('searchbox')).toBeNull()
})

// There is no layout here: the table is told that it is 600 pixels high.
const tall = () => {
  vi.spyOn(Element.prototype, 'clientHeight', 'get').mockReturnValue(600)
  vi.spyOn(Element.prototype, 'clientWidth', 'get').mockReturnValue(1000)
}

test('an agent is taken out from its tile at once, since it is written before what that does; one that was taken out is brought back there', async () => {
  cluster(2)
  const drain = vi.fn()
  const back = vi.fn()
  show(<Agents search={{}} set={() => {}} onOpen={() => {}} onDrain={drain} onUncordon={back} />)
  const button = await screen.findByRole('button', { name: 'Drain agent i-1' })
  expect(document.getElementById(button.getAttribute('aria-describedby') ?? '')?.textContent).toContain('nothing new starts')
  await userEvent.click(button)
  expect((drain.mock.calls[0]![0] as { id: string }).id).toBe('i-1')
  answering(() => ({ data: { agent_list: { total_count: 1, items: [{ ...agent(7), schedulable: false }] } } }))
  show(<Agents search={{}} set={() => {}} onOpen={() => {}} onDrain={drain} onUncordon={back} />)
  expect(await screen.findByText('i-7')).toBeTruthy()
  expect(screen.queryByRole('button', { name: 'Drain agent i-7' })).toBeNull()
  await userEvent.click(screen.getByRole('button', { name: 'Uncordon agent i-7' }))
  expect((back.mock.calls[0]![0] as { id: string }).id).toBe('i-7')
})

test('of five thousand agents a page is asked for and few rows are drawn', async () => {
  tall()
  const asked = cluster(5000)
  const set = vi.fn()
  show(<Agents search={{}} set={set} onOpen={() => {}} onDrain={() => {}} onUncordon={() => {}} />)
  expect(await screen.findByText('i-0')).toBeTruthy()
  const drawn = document.querySelectorAll('[role=row]').length
  expect(drawn).toBeGreaterThan(10)
  expect(drawn).toBeLessThan(60)
  expect(asked.every((a) => (a.body as { variables: { limit: number } }).variables.limit === 100)).toBe(true)
  await userEvent.type(screen.getByRole('searchbox', { name: 'Find an agent by its name' }), 'i-4')
  await waitFor(() => expect(set).toHaveBeenLastCalledWith({ q: 'i-4' }))
  await userEvent.click(screen.getByRole('button', { name: 'Take no work' }))
  expect(set).toHaveBeenLastCalledWith({ show: 'ill' })
})

test('no agent at all says how one joins; none that is like that does not', async () => {
  cluster(0)
  const set = vi.fn()
  const { again } = show(<Agents search={{}} set={set} onOpen={() => {}} onDrain={() => {}} onUncordon={() => {}} />)
  expect(await screen.findByText('No agent has joined')).toBeTruthy()
  again(<Agents search={{ q: 'x' }} set={set} onOpen={() => {}} onDrain={() => {}} onUncordon={() => {}} />)
  expect(await screen.findByText('No agent is like that')).toBeTruthy()
  await userEvent.click(screen.getByRole('button', { name: 'Clear filters' }))
  expect(set).toHaveBeenLastCalledWith({ q: undefined, show: undefined })
})

test('what a filter holds is quoted', () => {
  // A backslash keeps % and _ from being patterns; the language of filters takes two for one.
  expect(agentFilter('a"b%_', 'ill')).toBe(
    String.raw`status != "TERMINATED" & (status != "ALIVE" | schedulable == false) & id ilike "%a\"b\\%\\_%"`,
  )
})
