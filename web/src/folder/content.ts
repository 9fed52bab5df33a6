import { queryOptions } from '@tanstack/react-query'
import { foreign } from '@/api/http'
import { downloadAddress } from './queries'

// What is in a file, as far as a page shows it.

/** Text beyond this is cut, and cannot be edited. */
export const mostText = 1 << 20
/** Pictures beyond this are not shown. */
export const mostImage = 32 << 20
export const mostRows = 2000

export type Kind = 'image' | 'table' | 'notebook' | 'text' | 'binary'

const images: Record<string, string> = {
  png: 'image/png',
  jpg: 'image/jpeg',
  jpeg: 'image/jpeg',
  gif: 'image/gif',
  webp: 'image/webp',
  avif: 'image/avif',
  bmp: 'image/bmp',
  ico: 'image/x-icon',
  svg: 'image/svg+xml',
}

const ending = (name: string) => /\.([A-Za-z0-9]+)$/.exec(name)?.[1]?.toLowerCase() ?? ''

export interface Content {
  kind: Kind
  text: string
  /** Lines end as on Windows. */
  crlf: boolean
  /** Whether all of it is here. */
  whole: boolean
  image: Blob | null
}

/** What bytes are, by the name of their file and by themselves. */
export function contentOf(name: string, raw: Uint8Array<ArrayBuffer>, size: number): Content {
  const out: Content = { kind: 'binary', text: '', crlf: false, whole: raw.length >= size, image: null }
  const mime = images[ending(name)]
  if (mime) return { ...out, kind: 'image', image: new Blob([raw], { type: mime }) }
  if (raw.subarray(0, 8192).includes(0)) return out
  let text: string
  try {
    // A cut may go through a letter; its beginning is left out.
    text = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(raw, { stream: !out.whole })
  } catch {
    return out
  }
  const kind = ending(name) === 'ipynb' && out.whole ? 'notebook' : ['csv', 'tsv'].includes(ending(name)) ? 'table' : 'text'
  return { ...out, kind, text, crlf: /\r\n/.test(text) && !/[^\r]\n/.test(text) }
}

export const contentQuery = (folder: string, path: string, size: number, modified: string) =>
  queryOptions({
    queryKey: ['folder', 'content', folder, path, size, modified],
    staleTime: Infinity,
    gcTime: 60_000,
    queryFn: async ({ signal }): Promise<Content> => {
      const name = path.slice(path.lastIndexOf('/') + 1)
      const image = ending(name) in images
      if (image && size > mostImage) return { kind: 'binary', text: '', crlf: false, whole: false, image: null }
      if (size === 0) return contentOf(name, new Uint8Array(), 0)
      const url = await downloadAddress(folder, [path], false)
      const r = await foreign(url, { signal, ...(image ? {} : { range: mostText }) })
      return contentOf(name, new Uint8Array(await r.arrayBuffer()), size)
    },
  })

/** Has the browser keep something as a file. */
export function save(what: Blob | string, name: string) {
  const a = document.createElement('a')
  a.href = typeof what === 'string' ? what : URL.createObjectURL(what)
  a.rel = 'noopener'
  a.download = name
  a.click()
  if (typeof what !== 'string') setTimeout(() => URL.revokeObjectURL(a.href), 10_000)
}

/** Rows of a table of text: quotes, doubled quotes and line breaks inside of them; the separator is what the first line has most of. */
export function rowsOf(text: string, most = mostRows): { rows: string[][]; cut: boolean } {
  const head = text.slice(0, text.indexOf('\n') < 0 ? undefined : text.indexOf('\n'))
  const sep = [',', ';', '\t'].reduce((a, b) => (head.split(b).length > head.split(a).length ? b : a))
  const rows: string[][] = []
  let row: string[] = []
  let cell = ''
  let quoted = false
  const endCell = () => {
    row.push(cell)
    cell = ''
  }
  const endRow = () => {
    endCell()
    if (row.length > 1 || row[0] !== '') rows.push(row)
    row = []
  }
  for (let i = text.charCodeAt(0) === 0xfeff ? 1 : 0; i < text.length; i++) {
    const c = text[i]!
    if (quoted) {
      if (c !== '"') cell += c
      else if (text[i + 1] === '"') {
        cell += '"'
        i++
      } else quoted = false
    } else if (c === '"' && cell === '') quoted = true
    else if (c === sep) endCell()
    else if (c === '\n') {
      endRow()
      if (rows.length > most) return { rows, cut: true }
    } else if (c !== '\r' || text[i + 1] !== '\n') cell += c
  }
  if (cell !== '' || row.length) endRow()
  return { rows, cut: false }
}

export interface Cell {
  kind: string
  text: string
  count: number | null
  outputs: { text: string; image: string; page: boolean }[]
}

const joined = (v: unknown): string => (Array.isArray(v) ? v.join('') : typeof v === 'string' ? v : '')
/* eslint-disable-next-line no-control-regex */
const escapes = /\u001b\[[0-9;?]*[A-Za-z]/g

/** The cells of a notebook, or nothing where it is none. Outputs are text and pictures; pages of strangers are never run. */
export function cellsOf(text: string): Cell[] | null {
  let book: unknown
  try {
    book = JSON.parse(text)
  } catch {
    return null
  }
  const cells = (book as { cells?: unknown } | null)?.cells
  if (!Array.isArray(cells)) return null
  return cells.map((c: Record<string, unknown>) => ({
    kind: joined(c['cell_type']),
    text: joined(c['source']),
    count: typeof c['execution_count'] === 'number' ? c['execution_count'] : null,
    outputs: (Array.isArray(c['outputs']) ? (c['outputs'] as Record<string, unknown>[]) : []).map((o) => {
      const data = (o['data'] ?? {}) as Record<string, unknown>
      const png = joined(data['image/png']).replace(/\s/g, '')
      const jpeg = joined(data['image/jpeg']).replace(/\s/g, '')
      const plain = joined(o['text']) || joined(data['text/plain']) || joined(o['traceback'] && (o['traceback'] as string[]).join?.('\n'))
      return {
        text: plain.replace(escapes, ''),
        image: png ? `data:image/png;base64,${png}` : jpeg ? `data:image/jpeg;base64,${jpeg}` : '',
        page: 'text/html' in data,
      }
    }),
  }))
}
