// Files go into sessions and come out of them as tar streams, which browsers do not know.

const block = 512
const encode = new TextEncoder()
const decode = new TextDecoder()

function octal(n: number, width: number): string {
  return n.toString(8).padStart(width - 1, '0') + '\0'
}

function header(name: string, size: number, mtime: number, type: string): Uint8Array<ArrayBuffer> {
  const out = new Uint8Array(block)
  const put = (text: string | Uint8Array, at: number) => out.set(typeof text === 'string' ? encode.encode(text) : text, at)
  put(encode.encode(name).slice(0, 100), 0)
  put(octal(0o644, 8), 100)
  put(octal(0, 8), 108)
  put(octal(0, 8), 116)
  put(octal(Math.min(size, 0o77777777777), 12), 124)
  put(octal(Math.floor(mtime / 1000), 12), 136)
  put('        ', 148)
  put(type, 156)
  put('ustar\u000000', 257)
  put(
    octal(
      out.reduce((n, b) => n + b, 0),
      7,
    ) + ' ',
    148,
  )
  return out
}

const padding = (size: number) => new Uint8Array((block - (size % block)) % block)

/** A record of the extended header; its length counts itself. */
function record(key: string, value: string): string {
  const rest = encode.encode(` ${key}=${value}\n`).length
  let n = rest + String(rest).length
  while (String(n).length + rest !== n) n = String(n).length + rest
  return `${n} ${key}=${value}\n`
}

/** The files as one tar. Nothing is read before it is sent. */
export function tarOf(files: { path: string; file: File }[]): Blob {
  const parts: BlobPart[] = []
  for (const { path, file } of files) {
    const long = encode.encode(path).length > 100 || /[^\x20-\x7e]/.test(path)
    const large = file.size > 0o77777777777
    if (long || large) {
      const text = encode.encode((long ? record('path', path) : '') + (large ? record('size', String(file.size)) : ''))
      parts.push(header('pax', text.length, file.lastModified, 'x'), text, padding(text.length))
    }
    parts.push(header(path, file.size, file.lastModified, '0'), file, padding(file.size))
  }
  parts.push(new Uint8Array(2 * block))
  return new Blob(parts, { type: 'application/x-tar' })
}

/** The first file of a tar. */
export function firstOf(tar: Uint8Array): Uint8Array | null {
  let at = 0
  while (at + block <= tar.length) {
    const head = tar.subarray(at, at + block)
    if (head[0] === 0) return null
    const text = (from: number, n: number) => decode.decode(head.subarray(from, from + n)).replace(/[\0 ]+$/, '')
    let size = parseInt(text(124, 12).trim(), 8)
    // Sizes beyond eight GiB are binary.
    if (head[124]! & 0x80) size = head.subarray(125, 136).reduce((n, b) => n * 256 + b, 0)
    if (!Number.isFinite(size)) return null
    const type = text(156, 1)
    at += block
    if (type === '0' || type === '') return tar.subarray(at, at + size)
    at += Math.ceil(size / block) * block
  }
  return null
}
