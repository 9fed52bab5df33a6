import { readdirSync, readFileSync } from 'node:fs'
import { expect, test } from 'vitest'

// The policy of the page has no unsafe-inline: an attribute `style` that is part of markup is refused by the browser. What React does with its
// property `style` is none: it sets element.style (CSSOM), which the policy allows. So the property may be used, and everything else that
// makes markup or attributes from text may not.
const ways: Record<string, RegExp> = {
  'an attribute in text': /\bstyle=["'`]/,
  setAttribute: /setAttribute(NS)?\([^)]*['"`]style['"`]/,
  'markup from text': /dangerouslySetInnerHTML|\.(inner|outer)HTML\s*=|insertAdjacentHTML|document\.write|createContextualFragment|srcDoc=/,
  'a style element': /<style\b|createElement\(['"`]style['"`]\)/,
  'a handler in text': /\son[a-z]+=["'`]/,
}

const sources = readdirSync('src', { recursive: true, encoding: 'utf8' })
  .filter((f) => /\.tsx?$/.test(f) && !/\.test\.tsx?$/.test(f))
  .map((f) => `src/${f}`)

/** What a source does that the policy of the page refuses. */
const refused = (text: string) =>
  Object.entries(ways)
    .filter(([, way]) => way.test(text))
    .map(([name]) => name)

test('the check knows what the policy refuses', () => {
  expect(refused('<p style="color: red">')).toEqual(['an attribute in text'])
  expect(refused("el.setAttribute('style', x)")).toEqual(['setAttribute'])
  expect(refused('el.innerHTML = x')).toEqual(['markup from text'])
  expect(refused('<p style={{ width: 4 }}>')).toEqual([])
})

test('no source makes styles or markup that the policy of the page refuses', () => {
  expect(sources.length).toBeGreaterThan(80)
  const found = [...sources, 'index.html'].flatMap((f) => refused(readFileSync(f, 'utf8')).map((way) => `${f}: ${way}`))
  expect(found).toEqual([])
})

// What a page looks like stands in the tokens and in classes, once. Only what is computed while it is drawn has a style of its own: where a
// row is, how full a meter is. Those parts are here, and each use is counted: a new one needs a reason.
const computed: Record<string, number> = { 'src/design/DataTable.tsx': 5, 'src/design/parts.tsx': 4 }

test('nothing but what is computed has a style of its own', () => {
  const found: Record<string, number> = {}
  for (const f of sources) {
    const n = [...readFileSync(f, 'utf8').matchAll(/\bstyles?=\{|\.style\.[a-z]|\.style\[/gi)].length
    if (n) found[f] = n
  }
  expect(found).toEqual(computed)
})

test('every class of place.css is used by a page or a part', () => {
  const classes = new Set([...readFileSync('src/design/place.css', 'utf8').matchAll(/\.([a-z][a-z0-9-]*)/g)].map((m) => m[1]!))
  expect(classes.size).toBeGreaterThan(40)
  const text = sources.map((f) => readFileSync(f, 'utf8')).join('\n')
  expect([...classes].filter((c) => !new RegExp(`[\\s"'\`]${c}[\\s"'\`$]`).test(text))).toEqual([])
})
