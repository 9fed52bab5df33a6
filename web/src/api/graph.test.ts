import { readdirSync, readFileSync } from 'node:fs'
import { expect, test } from 'vitest'

// Types of what the wire has come from Go and from the GraphQL schema. A form of it that is written by hand would be one that nobody compares.
const sources = readdirSync('src', { recursive: true, encoding: 'utf8' })
  .filter((f) => /queries\.ts$|templates\.ts$|me\.ts$/.test(f))
  .map((f) => `src/${f}`)

/** Members of an interface that say fields of the wire: with an underscore, and not made here. */
const handwritten = (text: string) =>
  [...text.matchAll(/^(?:export )?interface (\w+)[^{]*\{\n([\s\S]*?)\n\}/gm)]
    .filter(([, , body]) => /^ {2}[a-z]+_[a-z_]+\??: /m.test(body!))
    .map(([, name]) => name!)

test('the check knows a form of the wire when it sees one', () => {
  expect(handwritten('export interface A {\n  max_size: number\n}\n')).toEqual(['A'])
  expect(handwritten('interface B extends C {\n  slots: number\n}\n')).toEqual([])
})

test('no query writes by hand what the wire has', () => {
  expect(sources.length).toBeGreaterThan(6)
  const found = sources.flatMap((f) => handwritten(readFileSync(f, 'utf8')).map((name) => `${f}: ${name}`))
  expect(found).toEqual([])
})
