import { useSyncExternalStore } from 'react'

// Uploads that a closed browser cut. A page may not keep files, so it keeps what they are, and the name of the upload at the server; the
// right to go on is asked for anew. Nothing here lets anybody in.

export interface Unfinished {
  folder: string
  folderName: string
  path: string
  size: number
  modified: number
  upload: string
}

interface Kept extends Unfinished {
  user: string
  at: number
}

const key = 'berth.uploads'
/** The server gives unfinished uploads up by then. */
const longest = 7 * 86_400_000
const most = 5000
/** Changes are written together: a directory of many files begins and ends one every moment. */
const gather = 200

let user = ''
/** What was unfinished when this page began. */
let before: Unfinished[] = []
const listeners = new Set<() => void>()

function read(): Kept[] {
  try {
    const all = JSON.parse(localStorage.getItem(key) ?? '[]') as Kept[]
    return Array.isArray(all) ? all : []
  } catch {
    return []
  }
}

function write(all: Kept[]) {
  try {
    if (all.length) localStorage.setItem(key, JSON.stringify(all.slice(-most)))
    else localStorage.removeItem(key)
  } catch {
    // An upload then goes on only while the page is open.
  }
}

/** Says whose uploads are meant, and looks for those of an earlier time. */
export function unfinishedOf(who: string, now = Date.now()) {
  if (user === who) return
  user = who
  before = read().filter((k) => k.user === who && now - k.at < longest)
  for (const l of listeners) l()
}

const changes = new Map<string, Kept | null>()
let timer: ReturnType<typeof setTimeout> | undefined
const idOf = (k: { folder: string; path: string; user: string }) => `${k.user}\n${k.folder}\n${k.path}`

/** Writes what changed. Other tabs write too, so what is there is read first. */
export function flush() {
  clearTimeout(timer)
  timer = undefined
  if (changes.size === 0) return
  const kept = [...changes.values()].filter((k): k is Kept => k !== null)
  write([...read().filter((k) => !changes.has(idOf(k))), ...kept])
  changes.clear()
}
if (typeof window !== 'undefined') window.addEventListener('pagehide', flush)

function later() {
  timer ??= setTimeout(flush, gather)
}

/** Keeps what a file is until it has come. One that was not begun yet has no name of an upload. */
export function remember(list: Unfinished[], now = Date.now()) {
  for (const u of list) changes.set(idOf({ ...u, user }), { ...u, user, at: now })
  later()
}

export function forget(folder: string, path: string) {
  changes.set(idOf({ folder, path, user }), null)
  later()
  if (!before.some((u) => u.folder === folder && u.path === path)) return
  before = before.filter((u) => u.folder !== folder || u.path !== path)
  for (const l of listeners) l()
}

/** Those whose files are there again: they are the same by name, size and time. */
export function matching(all: Unfinished[], files: File[]): { of: Unfinished; file: File }[] {
  const left = [...all]
  const out: { of: Unfinished; file: File }[] = []
  for (const file of files) {
    const rel = file.webkitRelativePath || file.name
    const fits = (u: Unfinished) => u.size === file.size && u.modified === file.lastModified
    let at = left.findIndex((u) => fits(u) && (u.path === rel || u.path.endsWith('/' + rel)))
    if (at < 0) at = left.findIndex((u) => fits(u) && u.path.split('/').pop() === file.name)
    if (at >= 0) out.push({ of: left.splice(at, 1)[0]!, file })
  }
  return out
}

/** They are under way again. */
export function taken(list: Unfinished[]) {
  before = before.filter((u) => !list.includes(u))
  for (const l of listeners) l()
}

export function useUnfinished(): Unfinished[] {
  return useSyncExternalStore(
    (l) => {
      listeners.add(l)
      return () => listeners.delete(l)
    },
    () => before,
  )
}
