import { fireEvent, screen, waitFor, within } from '@testing-library/react'
import userEvent from '@testing-library/user-event'
import { useState } from 'react'
import { expect, test, vi } from 'vitest'
import { Problem } from '@/api/http'
import { show } from '../../test/wrap'
import { among, atOnce, ManyPicker, Picker, type Choice, type Choices } from './Picker'

interface Asked {
  q: string
  limit: number
  offset: number
}

/** A server with many domains, which remembers what it was asked. */
function server(many: number, name = (i: number) => `domain-${String(i).padStart(5, '0')}`) {
  const asked: Asked[] = []
  const all = Array.from({ length: many }, (_, i) => name(i))
  const of: Choices = {
    key: ['test', many, Math.random()],
    load: async (q, limit, offset) => {
      asked.push({ q, limit, offset })
      const found = all.filter((n) => n.includes(q))
      return { total: found.length, items: found.slice(offset, offset + limit).map((n): Choice => ({ value: n, label: n })) }
    },
  }
  return { of, asked }
}

function One({
  of,
  at = null,
  clearable = false,
  onSubmit,
}: {
  of: Choices
  at?: string | null
  clearable?: boolean
  onSubmit?: () => void
}) {
  const [v, setV] = useState<string | null>(at)
  return (
    <form
      onSubmit={(e) => {
        e.preventDefault()
        onSubmit?.()
      }}>
      <Picker label="Domain" of={of} value={v} onChange={setV} clearable={clearable} />
      <output>{v ?? 'none'}</output>
      <button type="submit">Send</button>
    </form>
  )
}

const field = (name = 'Domain') => screen.getByRole('combobox', { name }) as HTMLInputElement
const options = () => screen.queryAllByRole('option').map((o) => o.textContent)
const chosen = () => document.querySelector('output')!.textContent

test('of ten thousand, nothing is read before it is opened, then twenty; the server searches', async () => {
  const { of, asked } = server(10_000)
  show(<One of={of} at="domain-09999" />)
  expect(field().value).toBe('domain-09999')
  expect(asked).toEqual([])
  await userEvent.click(field())
  await screen.findByRole('option', { name: 'domain-00000' })
  expect(asked).toEqual([{ q: '', limit: atOnce, offset: 0 }])
  expect(options()).toHaveLength(atOnce + 1)
  expect(options().at(-1)).toBe('9,980 more')

  // No machine is too busy to press four keys without a rest in between.
  for (const value of ['0', '05', '051', '0512']) fireEvent.change(field(), { target: { value } })
  await screen.findByRole('option', { name: 'domain-00512' })
  await waitFor(() => expect(options()).not.toContain('domain-00000'))
  expect(asked.slice(1).map((a) => a.q)).toEqual(['0512'])
  // The first that matches is marked, so that Enter takes it.
  await waitFor(() => expect(document.querySelector('[data-combobox-selected]')?.textContent).toBe('domain-00512'))
  await userEvent.keyboard('{Enter}')
  expect(chosen()).toBe('domain-00512')
  expect(field().value).toBe('domain-00512')
  expect(screen.queryByRole('listbox')).toBeNull()
})

test('keys alone reach what the next pages hold, and go on with the first that came', async () => {
  const { of, asked } = server(45)
  show(<One of={of} />)
  await userEvent.tab()
  await userEvent.keyboard('{ArrowDown}')
  await screen.findByRole('option', { name: 'domain-00000' })
  await userEvent.keyboard('{ArrowUp}')
  await waitFor(() => expect(document.querySelector('[data-combobox-selected]')).not.toBeNull())
  while (document.querySelector('[data-combobox-selected]')?.textContent !== '25 more') await userEvent.keyboard('{ArrowDown}')
  await userEvent.keyboard('{Enter}')
  await screen.findByRole('option', { name: 'domain-00020' })
  await waitFor(() => expect(document.querySelector('[data-combobox-selected]')?.textContent).toBe('domain-00020'))
  expect(chosen()).toBe('none')
  await userEvent.keyboard('{Enter}')
  expect(chosen()).toBe('domain-00020')
  expect(asked.map((a) => a.offset)).toEqual([0, 20])
})

test('it says that it reads, that nothing matches, and what was refused, and tries again', async () => {
  let answer: (p: { items: Choice[]; total: number }) => void = () => {}
  const load = vi
    .fn<Choices['load']>()
    .mockImplementationOnce(() => new Promise((ok) => (answer = ok)))
    .mockRejectedValueOnce(
      new Problem(503, 'x/away', 'Away', 'no manager answers; try again in some seconds', 'try again in some seconds', 'r'),
    )
    .mockResolvedValue({ items: [{ value: 'b', label: 'bravo' }], total: 1 })
  show(<One of={{ key: ['test', 'states'], load }} />)
  await userEvent.click(field())
  await screen.findByRole('status', { name: 'Reading…' })
  answer({ items: [], total: 0 })
  expect((await screen.findByText('Nothing matches')).getAttribute('role')).toBe('status')
  await userEvent.keyboard('b')
  expect((await screen.findByRole('alert')).textContent).toBe('no manager answers; try again in some seconds')
  await userEvent.click(screen.getByRole('option', { name: 'Try again' }))
  await screen.findByRole('option', { name: 'bravo' })
  expect(screen.queryByRole('alert')).toBeNull()
  expect(chosen()).toBe('none')
})

test('a search never sends the form, and what is typed and not chosen is not kept', async () => {
  const { of } = server(30)
  const sent = vi.fn()
  show(<One of={of} at="domain-00007" onSubmit={sent} />)
  await userEvent.click(field())
  await userEvent.keyboard('nowhere{Enter}')
  expect(sent).not.toHaveBeenCalled()
  await userEvent.tab()
  expect([chosen(), field().value]).toEqual(['domain-00007', 'domain-00007'])
})

test('who writes a whole name and goes on has chosen it', async () => {
  const { of } = server(30)
  show(<One of={of} />)
  await userEvent.click(field())
  await userEvent.keyboard('DOMAIN-00012'.toLowerCase())
  await waitFor(() => expect(options()).toEqual(['domain-00012']))
  await userEvent.tab()
  expect(chosen()).toBe('domain-00012')
})

test('a choice can be cleared where that is meant, and Escape changes nothing', async () => {
  const { of } = server(3)
  show(<One of={of} at="domain-00001" clearable />)
  await userEvent.click(field())
  await screen.findByRole('option', { name: 'domain-00002' })
  await userEvent.keyboard('{Escape}')
  expect([chosen(), field().value]).toEqual(['domain-00001', 'domain-00001'])
  await userEvent.click(screen.getByRole('button', { name: 'Clear the choice' }))
  expect(chosen()).toBe('none')
})

test('names are text, whatever stands in them', async () => {
  const { of } = server(2, (i) => `<img src=x onerror=alert(${i})>`)
  show(<One of={of} />)
  await userEvent.click(field())
  await screen.findByRole('option', { name: '<img src=x onerror=alert(0)>' })
  expect(document.querySelector('img')).toBeNull()
})

test('a server that says there is more and sends nothing is not asked for ever', async () => {
  const load = vi.fn<Choices['load']>().mockImplementation(async (_q, _l, offset) => ({
    items: offset === 0 ? [{ value: 'a', label: 'alpha' }] : [],
    total: 1000,
  }))
  show(<One of={{ key: ['test', 'liar'], load }} />)
  await userEvent.click(field())
  await userEvent.click(await screen.findByRole('option', { name: '999 more' }))
  await waitFor(() => expect(options()).toEqual(['alpha']))
  expect(load).toHaveBeenCalledTimes(2)
})

test('some of many: chosen ones keep their names, and go by their button or Backspace', async () => {
  const { of } = server(30)
  function Some() {
    const [v, setV] = useState(['p-1'])
    return (
      <>
        <ManyPicker label="Projects" of={of} value={v} names={new Map([['p-1', 'far away']])} onChange={setV} />
        <output>{v.join(' ')}</output>
      </>
    )
  }
  show(<Some />)
  screen.getByText('far away')
  await userEvent.click(field('Projects'))
  await userEvent.keyboard('00003')
  await waitFor(() => expect(options()).toEqual(['domain-00003']))
  await waitFor(() => expect(document.querySelector('[data-combobox-selected]')).not.toBeNull())
  await userEvent.keyboard('{Enter}')
  expect(chosen()).toBe('p-1 domain-00003')
  await userEvent.click(screen.getByRole('button', { name: 'Remove far away' }))
  expect(chosen()).toBe('domain-00003')
  await userEvent.click(field('Projects'))
  await userEvent.keyboard('{Backspace}')
  expect(chosen()).toBe('')
})

test('choices that are here already are searched and cut into pages', async () => {
  const of = among(
    'here',
    Array.from({ length: 100 }, (_, i) => `Group ${i}`),
  )
  expect((await of.load('gROUP 9', 5, 5, new AbortController().signal)).items.map((c) => c.label)).toEqual([
    'Group 94',
    'Group 95',
    'Group 96',
    'Group 97',
    'Group 98',
  ])
  expect(among('here', ['a', 'bc']).key).not.toEqual(among('here', ['ab', 'c']).key)
  show(<One of={of} />)
  await userEvent.click(field())
  await screen.findByRole('option', { name: '80 more' })
  expect(within(screen.getByRole('listbox', { name: 'Domain' })).getAllByRole('option')).toHaveLength(atOnce + 1)
})
