/** Has the browser keep a text as a file. */
export function saveText(name: string, text: string, type = 'text/csv;charset=utf-8') {
  const url = URL.createObjectURL(new Blob([text], { type }))
  const a = document.createElement('a')
  a.href = url
  a.download = name
  a.click()
  URL.revokeObjectURL(url)
}

/** A row of a table for spreadsheets: what they would take for a formula begins with an apostrophe. */
export function csvRow(cells: (string | number)[]): string {
  return cells.map(csvCell).join(',') + '\r\n'
}

function csvCell(v: string | number): string {
  if (typeof v === 'number') return String(v)
  const s = /^'*[=+\-@\t\r]/.test(v) && !/^-?[\d.]+$/.test(v) ? `'${v}` : v
  return /[",\r\n]/.test(s) ? `"${s.replace(/"/g, '""')}"` : s
}
