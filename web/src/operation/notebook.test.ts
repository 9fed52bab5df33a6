import { expect, test } from 'vitest'
import type { Image } from '@/image/queries'
import { firstImage, notebookOf } from './notebook'

const image = (name: string, installed: boolean, ports: string) =>
  ({ name, installed, labels: [{ key: 'ai.backend.service-ports', value: ports }] }) as Image

test('a first notebook has the usual image, whatever others used last', () => {
  const usual = image('berth/python', true, 'sshd:preopen:2200,jupyter:http:8888')
  const theirs = image('lab/theirs', true, 'jupyterlab:http:8888')
  const away = image('lab/away', false, 'jupyter:http:8888')
  const none = image('berth/base', true, 'ttyd:http:7681')
  expect(firstImage(usual, [theirs, away])).toBe(usual)
  expect(firstImage(null, [none, away, theirs])).toBe(theirs)
  expect(firstImage({ ...usual, installed: false }, [theirs])).toBe(theirs)
  expect(firstImage(undefined, [none, away])).toBe(away)
  expect(firstImage(none, [none])).toBeUndefined()
  expect(notebookOf(theirs)).toBe('jupyterlab')
})
