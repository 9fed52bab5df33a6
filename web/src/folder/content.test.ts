import { expect, test } from 'vitest'
import { cellsOf, contentOf, rowsOf } from './content'

const bytes = (s: string) => new TextEncoder().encode(s) as Uint8Array<ArrayBuffer>

test('what a file is follows from its name and its bytes', () => {
  expect(contentOf('a.py', bytes('x = 1\n'), 6)).toMatchObject({ kind: 'text', whole: true, crlf: false })
  expect(contentOf('a.txt', bytes('a\r\nb\r\n'), 6).crlf).toBe(true)
  expect(contentOf('mixed.txt', bytes('a\r\nb\n'), 5).crlf).toBe(false)
  expect(contentOf('a.csv', bytes('a,b'), 3).kind).toBe('table')
  expect(contentOf('a.png', bytes('x'), 1).kind).toBe('image')
  expect(contentOf('zero.txt', new Uint8Array([65, 0, 66]), 3).kind).toBe('binary')
  expect(contentOf('latin.txt', new Uint8Array([0xe9, 0x20]), 2).kind).toBe('binary')
})

test('a cut through a letter leaves its beginning out', () => {
  expect(contentOf('k.txt', bytes('한글').subarray(0, 4) as Uint8Array<ArrayBuffer>, 6)).toMatchObject({
    kind: 'text',
    text: '한',
    whole: false,
  })
  expect(contentOf('n.ipynb', bytes('{"cells'), 70).kind).toBe('text')
})

test('tables have quotes, separators and an end', () => {
  expect(rowsOf('a,b\n1,"x, ""y""\nz"\n').rows).toEqual([
    ['a', 'b'],
    ['1', 'x, "y"\nz'],
  ])
  expect(rowsOf('a;b\r\n1;2').rows).toEqual([
    ['a', 'b'],
    ['1', '2'],
  ])
  expect(rowsOf('a\n'.repeat(50), 10)).toMatchObject({ cut: true })
  expect(rowsOf('').rows).toEqual([])
})

test('a notebook gives cells, and what is none gives nothing', () => {
  const book = {
    cells: [
      { cell_type: 'markdown', source: ['# A\n', 'b'] },
      {
        cell_type: 'code',
        source: 'print(1)',
        execution_count: 3,
        outputs: [
          { output_type: 'stream', text: ['1\n'] },
          { data: { 'image/png': 'QUJD\n', 'text/plain': '<Figure>' } },
          { data: { 'text/html': '<script>alert(1)</script>' } },
          { traceback: ['\u001b[31mbad\u001b[0m'] },
        ],
      },
    ],
  }
  const cells = cellsOf(JSON.stringify(book))!
  expect(cells[0]).toMatchObject({ kind: 'markdown', text: '# A\nb' })
  expect(cells[1]!.outputs.map((o) => o.text)).toEqual(['1\n', '<Figure>', '', 'bad'])
  expect(cells[1]!.outputs[1]!.image).toBe('data:image/png;base64,QUJD')
  expect(cells[1]!.outputs[2]!.page).toBe(true)
  expect(cellsOf('{')).toBeNull()
  expect(cellsOf('{"a":1}')).toBeNull()
  expect(cellsOf('null')).toBeNull()
})
