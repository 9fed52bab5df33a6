import { expect, test } from 'vitest'
import { directoriesOf } from './uploads'

test('directories are made from the outer one to the inner', () => {
  expect(directoriesOf(['a/b/c.txt', 'a/d.txt', 'e.txt', 'a/b/x/y.txt'])).toEqual(['a', 'a/b', 'a/b/x'])
  expect(directoriesOf(['x.txt'])).toEqual([])
})
