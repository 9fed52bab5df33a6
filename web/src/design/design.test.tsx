import { screen } from '@testing-library/react'
import userEvent from '@testing-library/user-event'
import { expect, test, vi } from 'vitest'
import { Problem } from '@/api/http'
import { show } from '../../test/wrap'
import { bytes, slotAmount, slotLine } from './amounts'
import { Listing } from './DataTable'
import { ConfirmAction, EmptyState, ErrorState, Meter, StateBadge } from './parts'
import { stateOf } from './state'
import { relative, span } from './time'

test('amounts: unknown is not zero, and no limit is not a number', () => {
  expect([bytes(null), bytes('NaN'), bytes(0), bytes(1536), bytes('268435456'), bytes('Infinity')]).toEqual([
    '–',
    '–',
    '0 B',
    '1.5 KiB',
    '256 MiB',
    '∞',
  ])
  expect([slotAmount('cpu', '2'), slotAmount('cuda.shares', '0.50'), slotAmount('mem', '1073741824'), slotAmount('cpu', null)]).toEqual([
    '2',
    '0.5',
    '1 GiB',
    '–',
  ])
  expect(slotLine({ mem: '4294967296', 'cuda.device': '1', cpu: '2' })).toBe('2 CPU · 4 GiB · 1 GPU')
})

test('times are short and say both directions', () => {
  expect([span(400), span(45_000), span(125_000), span(3_900_000), span(90_000_000)]).toEqual([
    '0.4 s',
    '45 s',
    '2 min 5 s',
    '1 h 5 min',
    '1 d 1 h',
  ])
  const now = Date.parse('2026-01-02T03:00:00Z')
  expect(relative('2026-01-02T02:50:00Z', now)).toBe('10 min ago')
  expect(relative('2026-01-02T05:00:00Z', now)).toBe('in 2 h')
  expect(relative(null, now)).toBe('–')
})

test('each status belongs to a state, and none that is not known is called running', () => {
  expect(['RUNNING', 'PENDING', 'PULLING', 'TERMINATED', 'ERROR', 'SOMETHING'].map((s) => stateOf(s))).toEqual([
    'running',
    'waiting',
    'changing',
    'ended',
    'failed',
    'ended',
  ])
  expect(stateOf('TERMINATED', 'FAILURE')).toBe('failed')
  show(<StateBadge status="TERMINATED" result="FAILURE" />)
  expect(screen.getByText('Failed')).toBeTruthy()
})

test('an error says what, what next and the request; trying again only where it can help', () => {
  const retry = vi.fn()
  const { again } = show(
    <ErrorState error={new Problem(400, 'x/y', 'T', 'no room; ask for 1 CPU', 'ask for 1 CPU', 'req-1')} retry={retry} />,
  )
  expect(screen.getByRole('alert').textContent).toContain('no room')
  expect(screen.getByText('What to do: ask for 1 CPU')).toBeTruthy()
  expect(screen.getByText('req-1')).toBeTruthy()
  expect(screen.queryByRole('button', { name: 'Try again' })).toBeNull()
  again(<ErrorState error={new Problem(503, 'x/y', 'T', 'away', '', '')} retry={retry} />)
  expect(screen.getByRole('button', { name: 'Try again' })).toBeTruthy()
})

test('hostile names are texts', () => {
  show(<EmptyState title={'<img src=x onerror="alert(1)">'} />)
  expect(document.querySelector('img')).toBeNull()
})

test('a meter of something without a limit has no bar', () => {
  const { again } = show(<Meter slot="cpu" used="2" of="Infinity" label="CPU" />)
  expect(screen.queryByRole('progressbar')).toBeNull()
  again(<Meter slot="cpu" used="2" of="4" label="CPU" />)
  expect(screen.getByRole('progressbar').getAttribute('aria-valuenow')).toBe('50')
})

test('what nothing can undo asks for the name, and a refusal stays where the question is', async () => {
  const act = vi.fn(() => Promise.reject(new Error('it is mounted')))
  const close = vi.fn()
  show(
    <ConfirmAction open onClose={close} title="Delete" verb="Delete folder" doing="Deleting…" name="data" onDo={act}>
      x
    </ConfirmAction>,
  )
  const button = screen.getByRole('button', { name: 'Delete folder' }) as HTMLButtonElement
  expect(button.disabled).toBe(true)
  await userEvent.type(screen.getByLabelText(/Type data/), 'data')
  await userEvent.click(button)
  expect(await screen.findByText('it is mounted')).toBeTruthy()
  expect(close).not.toHaveBeenCalled()
})

const rows = Array.from({ length: 5 }, (_, i) => ({ id: `r${i}`, name: `row ${i}` }))
const columns = [{ id: 'n', title: 'Name', width: '1fr', sort: 'name', cell: (r: { name: string }) => r.name }]

test('a table: order by click, the keyboard selects and opens', async () => {
  vi.spyOn(Element.prototype, 'clientHeight', 'get').mockReturnValue(400)
  vi.spyOn(Element.prototype, 'clientWidth', 'get').mockReturnValue(800)
  const order = vi.fn(),
    open = vi.fn(),
    select = vi.fn()
  show(
    <Listing
      label="rows"
      columns={columns}
      rows={rows}
      rowKey={(r) => r.id}
      order="name"
      onOrder={order}
      onOpen={open}
      selected={new Set()}
      onSelect={select}
      empty="none"
    />,
  )
  expect(await screen.findByText('row 3')).toBeTruthy()
  await userEvent.click(screen.getByRole('button', { name: /Name/ }))
  expect(order).toHaveBeenCalledWith('-name')
  screen.getByRole('region', { name: 'rows' }).focus()
  await userEvent.keyboard('jjx{Enter}')
  expect([...(select.mock.calls[0]![0] as Set<string>)]).toEqual(['r1'])
  expect(open).toHaveBeenCalledWith(rows[1])
  vi.restoreAllMocks()
})

test('a table without rows shows what to do, and one that failed says why', () => {
  const { again } = show(
    <Listing label="rows" columns={columns} rows={[]} rowKey={(r: { name: string }) => r.name} empty={<p>start one</p>} />,
  )
  expect(screen.getByText('start one')).toBeTruthy()
  again(
    <Listing
      label="rows"
      columns={columns}
      rows={undefined}
      rowKey={(r: { name: string }) => r.name}
      error={new Error('away')}
      empty="none"
    />,
  )
  expect(screen.getByRole('alert').textContent).toContain('away')
})
