import { readFileSync } from 'node:fs'
import { expect, test } from 'vitest'

const light = (hex: string) => {
  const [r, g, b] = [1, 3, 5]
    .map((i) => parseInt(hex.slice(i, i + 2), 16) / 255)
    .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
  return 0.2126 * r! + 0.7152 * g! + 0.0722 * b!
}
const contrast = (a: string, b: string) => (Math.max(light(a), light(b)) + 0.05) / (Math.min(light(a), light(b)) + 0.05)

test('every ink can be read on every ground, in light and dark', () => {
  const [day, ...night] = readFileSync('src/design/tokens.css', 'utf8').split(/dark/)
  for (const css of [day!, night.join('')]) {
    const tokens = Object.fromEntries([...css.matchAll(/--b-([a-z0-9-]+): (#[0-9a-f]{6})/g)].map((m) => [m[1], m[2]!]))
    const grounds = Object.keys(tokens).filter((k) => ['bg', 'panel', 'hover', 'sunken'].includes(k) || k.endsWith('-soft'))
    expect(grounds.length).toBeGreaterThan(8)
    for (const ink of ['ink', 'ink-2', 'ink-3', 'accent-ink', 'running', 'waiting', 'changing', 'ended', 'failed'])
      for (const g of grounds) expect(contrast(tokens[ink]!, tokens[g]!), `${ink} on ${g}`).toBeGreaterThanOrEqual(4.5)
  }
})
