import { Button, MantineProvider, Menu } from '@mantine/core'
import { render, screen, waitFor } from '@testing-library/react'
import userEvent from '@testing-library/user-event'
import axe from 'axe-core'
import { expect, test } from 'vitest'
import { CopyAs } from './CopyAs'
import { theme } from './theme'

test('an open menu holds what a menu may hold, and its first item has the focus', async () => {
  render(
    <MantineProvider theme={theme} env="test">
      <Menu>
        <Menu.Target>
          <Button>More</Button>
        </Menu.Target>
        <Menu.Dropdown>
          <Menu.Item>Rename</Menu.Item>
          <CopyAs cli="berth session list" api={{ method: 'GET', path: '/session' }} />
        </Menu.Dropdown>
      </Menu>
    </MantineProvider>,
  )
  await userEvent.click(screen.getByRole('button', { name: 'More' }))
  const first = await screen.findByRole('menuitem', { name: 'Rename' })
  await waitFor(() => expect(document.activeElement).toBe(first))
  const found = await axe.run(document.body, { runOnly: ['aria-required-children'] })
  expect(found.violations).toEqual([])
  expect(found.passes.length).toBe(1)
})
