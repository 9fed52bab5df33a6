import { screen, waitFor } from '@testing-library/react'
import userEvent from '@testing-library/user-event'
import { expect, test, vi } from 'vitest'
import { answering, refusing, show } from '../../test/wrap'
import { curlOf } from '@/design/CopyAs'
import { editorLinks } from '@/session/SessionParts'
import { AppShare } from './AppShare'
import type { Circuit } from './queries'

const circuit = {
  id: 'c1',
  app: 'jupyter',
  url: 'https://apps.example.org/x',
  public: false,
  mine: true,
  protocol: 'http',
  last_used: null,
  shared_users: ['ada@example.org'],
} as unknown as Circuit
const dialog = (onClose = vi.fn()) => <AppShare open onClose={onClose} session="s1" name="lab" of={circuit} />

test('somebody is added to those who have an app already, and taken away again', async () => {
  const asked = answering(() => circuit)
  show(dialog())
  await userEvent.type(screen.getByLabelText(/Email of somebody/), 'bob@example.org')
  await userEvent.click(screen.getByRole('button', { name: 'Share' }))
  await waitFor(() =>
    expect(asked).toContainEqual({
      url: '/func/apps/circuits/c1',
      method: 'PATCH',
      body: { shared_users: ['ada@example.org', 'bob@example.org'] },
    }),
  )
  await userEvent.click(screen.getByRole('button', { name: 'Remove ada@example.org' }))
  await waitFor(() => expect(asked).toContainEqual({ url: '/func/apps/circuits/c1', method: 'PATCH', body: { shared_users: [] } }))
})

test('what the cluster refuses is said where it was asked', async () => {
  answering(() =>
    refusing(400, { title: 'Bad request', msg: 'nobody of your domain has this email; ask them for it', next: 'ask them for it' }),
  )
  show(dialog())
  await userEvent.type(screen.getByLabelText(/Email of somebody/), 'x@example.org')
  await userEvent.click(screen.getByRole('button', { name: 'Share' }))
  expect((await screen.findByRole('alert')).textContent).toContain('nobody of your domain has this email')
})

test('a link that is revoked is closed', async () => {
  const asked = answering(() => undefined)
  const closed = vi.fn()
  show(dialog(closed))
  await userEvent.click(screen.getByRole('button', { name: 'Revoke the link' }))
  await waitFor(() => expect(closed).toHaveBeenCalled())
  expect(asked[0]).toMatchObject({ url: '/func/apps/circuits/c1', method: 'DELETE' })
})

test('addresses of editors and requests are those that programs take', () => {
  expect(editorLinks('my lab').vscode).toBe('vscode://vscode-remote/ssh-remote+my%20lab.berth/home/work/')
  expect(editorLinks('lab').jetbrains).toContain('host=lab.berth&port=22&user=work')
  expect(curlOf({ method: 'POST', path: '/session', body: { name: "it's" } })).toBe(
    `# berth token create NAME makes BERTH_TOKEN\ncurl -X POST "$BACKEND_ENDPOINT/session" \\\n  -H "Authorization: Bearer $BERTH_TOKEN" \\\n  -H 'Content-Type: application/json' \\\n  -d '{"name":"it'\\''s"}'`,
  )
})
