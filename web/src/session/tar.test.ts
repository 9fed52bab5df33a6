import { expect, test } from 'vitest'
import { firstOf, tarOf } from './tar'

async function bytesOf(b: Blob): Promise<Uint8Array> {
  return new Promise((ok) => {
    const r = new FileReader()
    r.onload = () => ok(new Uint8Array(r.result as ArrayBuffer))
    r.readAsArrayBuffer(b)
  })
}

test('a file that goes into a tar comes out of it', async () => {
  for (const path of ['a.txt', 'dir/' + 'x'.repeat(200) + '.txt', '한글/파일.txt']) {
    const tar = await bytesOf(tarOf([{ path, file: new File(['hello ' + path], 'f', { lastModified: 1_700_000_000_000 }) }]))
    expect(tar.length % 512).toBe(0)
    expect(new TextDecoder().decode(firstOf(tar)!)).toBe('hello ' + path)
  }
})

test('the checksum of a header is right, and long names stand in the extended header', async () => {
  const tar = await bytesOf(tarOf([{ path: 'y'.repeat(120), file: new File([''], 'f') }]))
  const head = tar.subarray(0, 512)
  const sum = parseInt(new TextDecoder().decode(head.subarray(148, 154)), 8)
  expect(head.reduce((n, b, i) => n + (i >= 148 && i < 156 ? 32 : b), 0)).toBe(sum)
  expect(new TextDecoder().decode(tar.subarray(512, 1024))).toMatch(/^1\d\d path=y{120}\n/)
})

test('what is no tar gives nothing', () => {
  expect(firstOf(new Uint8Array(1024))).toBeNull()
  expect(firstOf(new Uint8Array([1, 2, 3]))).toBeNull()
})
