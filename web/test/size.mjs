// What a browser has to load before the first page shows: the script of the page, and all that it imports at once. The build fails when that
// is larger than it may be.
import { readFileSync } from 'node:fs'
import { gzipSync } from 'node:zlib'

const most = 350 * 1024
const page = readFileSync('dist/index.html', 'utf8')
const left = [...page.matchAll(/(?:src|href)="\/assets\/([^"]+\.js)"/g)].map((m) => m[1])
const seen = new Set()
let sum = 0
while (left.length) {
  const name = left.pop()
  if (seen.has(name)) continue
  seen.add(name)
  const text = readFileSync(`dist/assets/${name}`, 'utf8')
  sum += gzipSync(text, { level: 9 }).length
  for (const m of text.matchAll(/(?:^|[;}\n])\s*(?:import|export)\s*(?:[\w{}*$,\s]*?from\s*)?["']\.\/([^"']+\.js)["']/g)) left.push(m[1])
}
if (seen.size === 0) throw new Error('the page names no script')
const said = `the first load is ${Math.round(sum / 1024)} KiB of compressed JavaScript; ${most / 1024} are the most`
if (sum > most) {
  console.error(`console: ${said}; next: load what few pages need by import()`)
  process.exit(1)
}
console.error(`console: ${said}`)
