import { useSyncExternalStore } from 'react'
import type { Upload as TusUpload } from 'tus-js-client'
import { Problem } from '@/api/http'
import { askUpload, makeDirectory } from './queries'
import { forget, remember, type Unfinished } from './unfinished'

// Uploads live outside of pages, so that they go on wherever the person goes. Each is resumable: what came is not sent again, also when
// the browser was closed in between and the file is chosen anew.

export interface Transfer {
  id: number
  folder: string
  folderName: string
  path: string
  size: number
  sent: number
  state: 'waiting' | 'going' | 'done' | 'failed'
  error: string
  /** The server's name of the upload, once it has begun. */
  upload: string
}

const atOnce = 3
let transfers: Transfer[] = []
const files = new Map<number, File>()
const running = new Map<number, TusUpload>()
const listeners = new Set<() => void>()
const doneListeners = new Set<(folder: string) => void>()
let next = 1

function tell() {
  transfers = [...transfers]
  for (const l of listeners) l()
}

export function useTransfers(): Transfer[] {
  return useSyncExternalStore(
    (l) => {
      listeners.add(l)
      return () => listeners.delete(l)
    },
    () => transfers,
  )
}

export function onUploaded(l: (folder: string) => void) {
  doneListeners.add(l)
  return () => {
    doneListeners.delete(l)
  }
}

export interface Dropped {
  path: string
  file: File
}

/** The directories that have to be there before files can come, the outer ones first. */
export function directoriesOf(paths: string[]): string[] {
  const out = new Set<string>()
  for (const p of paths) {
    const parts = p.split('/').slice(0, -1)
    for (let i = 1; i <= parts.length; i++) out.add(parts.slice(0, i).join('/'))
  }
  return [...out].filter((d) => d !== '' && d !== '.').sort((a, b) => a.split('/').length - b.split('/').length || a.localeCompare(b))
}

/** Sends files into a directory of a folder. */
export async function upload(folder: string, folderName: string, base: string, dropped: Dropped[]) {
  const join = (p: string) => (base === '.' || base === '' ? p : `${base}/${p}`)
  const deepest = directoriesOf(dropped.map((d) => join(d.path))).filter((d, _, all) => !all.some((o) => o.startsWith(d + '/')))
  for (const dir of deepest) if (dir !== base) await makeDirectory(folder, dir, true)
  for (const d of dropped) {
    const id = next++
    files.set(id, d.file)
    transfers.push({ id, folder, folderName, path: join(d.path), size: d.file.size, sent: 0, state: 'waiting', error: '', upload: '' })
  }
  remember(transfers.slice(-dropped.length).map((t) => keptOf(t, files.get(t.id)!)))
  tell()
  pump()
}

const keptOf = (t: Transfer, file: File): Unfinished => ({
  folder: t.folder,
  folderName: t.folderName,
  path: t.path,
  size: file.size,
  modified: file.lastModified,
  upload: t.upload,
})

/** Goes on with uploads of an earlier time, whose files were chosen again. */
export function goOn(list: { of: Unfinished; file: File }[]) {
  for (const { of: u, file } of list) {
    const id = next++
    files.set(id, file)
    transfers.push({ ...u, id, sent: 0, state: 'waiting', error: '' })
  }
  tell()
  pump()
}

function change(id: number, part: Partial<Transfer>) {
  transfers = transfers.map((t) => (t.id === id ? { ...t, ...part } : t))
  for (const l of listeners) l()
}

function pump() {
  const going = transfers.filter((t) => t.state === 'going').length
  for (const t of transfers.filter((x) => x.state === 'waiting').slice(0, Math.max(0, atOnce - going))) {
    change(t.id, { state: 'going' })
    void begin(t)
  }
}

async function begin(t: Transfer) {
  const file = files.get(t.id)
  if (!file) return
  const end = (part: Partial<Transfer>) => {
    running.delete(t.id)
    change(t.id, part)
    if (part.state === 'done') {
      forget(t.folder, t.path)
      files.delete(t.id)
      for (const l of doneListeners) l(t.folder)
    }
    pump()
  }
  try {
    const [{ Upload }, ticket] = await Promise.all([import('tus-js-client'), askUpload(t.folder, t.path, file.size, t.upload || undefined)])
    if (file.size === 0) {
      end({ state: 'done' })
      return
    }
    if (ticket.upload) {
      change(t.id, { upload: ticket.upload })
      remember([keptOf({ ...t, upload: ticket.upload }, file)])
    }
    const u = new Upload(file, {
      ...chunks,
      uploadUrl: `${ticket.url}${ticket.url.includes('?') ? '&' : '?'}token=${encodeURIComponent(ticket.token)}`,
      onProgress: (sent) => change(t.id, { sent }),
      onSuccess: () => end({ state: 'done', sent: file.size }),
      onError: (err) => end({ state: 'failed', error: wordsOf(err) }),
    })
    running.set(t.id, u)
    u.start()
  } catch (err) {
    // The server knows the upload no more: the next try begins a new one.
    if (t.upload && err instanceof Problem && !err.passing) {
      forget(t.folder, t.path)
      end({ state: 'failed', error: err.message, upload: '' })
    } else end({ state: 'failed', error: err instanceof Error ? err.message : String(err) })
  }
}

// The address with its token is never kept: an upload is asked for anew by its name.
const chunks = { chunkSize: 16 << 20, retryDelays: [500, 1000, 3000, 8000, 20000], storeFingerprintForResuming: false }

/** Writes a text as a file of a folder. It takes the place of an earlier one when all of it has come. */
export async function writeText(folder: string, path: string, text: string): Promise<void> {
  const body = new Blob([text])
  const [{ Upload }, ticket] = await Promise.all([import('tus-js-client'), askUpload(folder, path, body.size)])
  if (body.size === 0) return
  await new Promise<void>((ok, no) => {
    new Upload(body as File, {
      ...chunks,
      uploadUrl: `${ticket.url}${ticket.url.includes('?') ? '&' : '?'}token=${encodeURIComponent(ticket.token)}`,
      onSuccess: () => ok(),
      onError: (err) => no(new Error(wordsOf(err))),
    }).start()
  })
}

function wordsOf(err: Error): string {
  const body = (err as { originalResponse?: { getBody(): string } | null }).originalResponse?.getBody()
  try {
    const p = JSON.parse(body ?? '') as { msg?: string; title?: string }
    return p.msg || p.title || err.message
  } catch {
    return err.message
  }
}

export function again(id: number) {
  change(id, { state: 'waiting', error: '' })
  pump()
}

export function drop(id: number) {
  void running
    .get(id)
    ?.abort(true)
    .catch(() => {})
  running.delete(id)
  files.delete(id)
  const gone = transfers.find((t) => t.id === id)
  if (gone) forget(gone.folder, gone.path)
  transfers = transfers.filter((t) => t.id !== id)
  tell()
  pump()
}

export function clearDone() {
  transfers = transfers.filter((t) => t.state !== 'done')
  tell()
}

/** What was dropped, directories with all that is in them. */
export async function droppedFiles(data: DataTransfer): Promise<Dropped[]> {
  const entries = [...data.items].map((i) => i.webkitGetAsEntry?.()).filter((e): e is FileSystemEntry => !!e)
  if (entries.length === 0) return [...data.files].map((file) => ({ path: file.name, file }))
  const out: Dropped[] = []
  const walk = async (e: FileSystemEntry): Promise<void> => {
    if (e.isFile) {
      const file = await new Promise<File>((ok, no) => (e as FileSystemFileEntry).file(ok, no))
      out.push({ path: e.fullPath.replace(/^\//, ''), file })
      return
    }
    const reader = (e as FileSystemDirectoryEntry).createReader()
    for (;;) {
      // A reader gives a hundred entries at a time.
      const some = await new Promise<FileSystemEntry[]>((ok, no) => reader.readEntries(ok, no))
      if (some.length === 0) return
      for (const x of some) await walk(x)
    }
  }
  for (const e of entries) await walk(e)
  return out
}
