import { fireEvent, screen, waitFor } from '@testing-library/react'
import userEvent from '@testing-library/user-event'
import { expect, test, vi } from 'vitest'
import { show } from '../../test/wrap'
import { SearchField } from './SearchField'

const typed = () => (screen.getByRole('searchbox', { name: 'Find' }) as HTMLInputElement).value

test('what is typed is asked for once it rests, and nothing typed asks for everything', async () => {
  const find = vi.fn()
  const { again } = show(<SearchField label="Find" value={undefined} onFind={find} />)
  // No machine is too busy to press three keys without a rest in between.
  for (const value of ['a', 'ad', 'ada']) fireEvent.change(screen.getByRole('searchbox'), { target: { value } })
  expect(find).not.toHaveBeenCalled()
  await waitFor(() => expect(find.mock.calls).toEqual([['ada']]))
  again(<SearchField label="Find" value="ada" onFind={find} />)
  await userEvent.clear(screen.getByRole('searchbox'))
  await waitFor(() => expect(find).toHaveBeenLastCalledWith(undefined))
})

test('an address that changes elsewhere shows in the field, an older one does not undo what is being typed', async () => {
  const { again } = show(<SearchField label="Find" value="ada" onFind={() => {}} />)
  expect(typed()).toBe('ada')
  await userEvent.type(screen.getByRole('searchbox'), ' l')
  again(<SearchField label="Find" value="ada" onFind={() => {}} />)
  expect(typed()).toBe('ada l')
  again(<SearchField label="Find" value={undefined} onFind={() => {}} />)
  expect(typed()).toBe('')
})
