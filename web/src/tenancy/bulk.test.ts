import { expect, test } from 'vitest'
import type { TenancyChange, TenancyResult } from '@/api/types'
import { csvRow } from '@/design/save'
import { carryOut, isNewUser, password, stepSize } from './bulk'

const change = (i: number): TenancyChange => ({
  kind: 'user',
  domain_name: 'default',
  name: `u${i}@example.org`,
  make: true,
  from: {},
  to: {},
  words: ['make it'],
})

test('changes go in steps, in their order, without the words for people', async () => {
  const sent: TenancyChange[][] = []
  const told: [number, number][] = []
  await carryOut(
    Array.from({ length: stepSize * 2 + 1 }, (_, i) => change(i)),
    async (step) => {
      sent.push(step)
      return step.map((): TenancyResult => ({ state: 'done' }))
    },
    (at, results) => told.push([at, results.length]),
    () => false,
  )
  expect(told).toEqual([
    [0, stepSize],
    [stepSize, stepSize],
    [2 * stepSize, 1],
  ])
  expect(sent.flat().map((c) => c.name)).toEqual(Array.from({ length: stepSize * 2 + 1 }, (_, i) => `u${i}@example.org`))
  expect(sent.flat().every((c) => !('words' in c))).toBe(true)
})

test('who stops gets no further step, and a failure ends the rest', async () => {
  let n = 0
  const changes = Array.from({ length: stepSize * 3 }, (_, i) => change(i))
  await carryOut(
    changes,
    async () => (n++, []),
    () => {},
    () => n === 1,
  )
  expect(n).toBe(1)
  await expect(
    carryOut(
      changes,
      async () => {
        n++
        throw new Error('cut')
      },
      () => {},
      () => false,
    ),
  ).rejects.toThrow('cut')
  expect(n).toBe(2)
})

test('passwords are long and differ; only new users get one', () => {
  expect(password()).toMatch(/^(\w{4}-){3}\w{4}$/)
  expect(password()).not.toBe(password())
  expect([isNewUser(change(1)), isNewUser({ ...change(1), make: false }), isNewUser({ ...change(1), kind: 'project' })]).toEqual([
    true,
    false,
    false,
  ])
})

test('no cell is a formula for a spreadsheet', () => {
  expect(csvRow(['=cmd()', '@x', "'=y", '+1', 'a,"b"', 'line\nbreak', '-2.5', 3])).toBe(
    `'=cmd(),'@x,''=y,'+1,"a,""b""","line\nbreak",-2.5,3\r\n`,
  )
})
