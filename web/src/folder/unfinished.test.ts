import { beforeEach, expect, test } from 'vitest'
import { flush, forget, matching, remember, unfinishedOf, type Unfinished } from './unfinished'

const one: Unfinished = { folder: 'f', folderName: 'data', path: 'tree/sub/a.bin', size: 3, modified: 1000, upload: 'u' }
beforeEach(() => localStorage.clear())

test('what a browser leaves behind names files and uploads, and ends when they are done', () => {
  unfinishedOf('ada')
  remember([one])
  remember([{ ...one, upload: 'u2' }])
  flush()
  const kept = JSON.parse(localStorage.getItem('berth.uploads')!) as unknown[]
  expect(kept).toHaveLength(1)
  expect(kept[0]).toMatchObject({ upload: 'u2', user: 'ada' })
  expect(localStorage.getItem('berth.uploads')).not.toMatch(/token|http/)
  forget('f', 'tree/sub/a.bin')
  flush()
  expect(localStorage.getItem('berth.uploads')).toBeNull()
})

test('another user of the browser neither sees nor ends them', () => {
  unfinishedOf('ada')
  remember([one])
  flush()
  unfinishedOf('bob')
  forget('f', 'tree/sub/a.bin')
  flush()
  expect(localStorage.getItem('berth.uploads')).toContain('ada')
})

test('a file chosen again is the same by name, size and time', () => {
  const file = (name: string, text: string, lastModified: number) => new File([text], name, { lastModified })
  expect(matching([one], [file('a.bin', 'abc', 1000)]).map((m) => m.of)).toEqual([one])
  expect(matching([one], [file('a.bin', 'abcd', 1000), file('a.bin', 'abc', 2000), file('b.bin', 'abc', 1000)])).toEqual([])
  const other = { ...one, path: 'other/a.bin' }
  const chosen = file('a.bin', 'abc', 1000)
  Object.defineProperty(chosen, 'webkitRelativePath', { value: 'other/a.bin' })
  expect(matching([one, other], [chosen])[0]!.of).toBe(other)
})

test('what another tab keeps is not written over', () => {
  unfinishedOf('cy')
  remember([one])
  flush()
  localStorage.setItem(
    'berth.uploads',
    JSON.stringify([...(JSON.parse(localStorage.getItem('berth.uploads')!) as object[]), { ...one, path: 'b', user: 'cy', at: 1 }]),
  )
  forget('f', 'tree/sub/a.bin')
  flush()
  expect(JSON.parse(localStorage.getItem('berth.uploads')!)).toMatchObject([{ path: 'b' }])
})
