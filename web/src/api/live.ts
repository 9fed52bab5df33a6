import type { QueryClient, QueryFilters } from '@tanstack/react-query'
import { useSyncExternalStore } from 'react'
import { expire, server } from './http'

// One stream of changes for the whole tab. It does not carry state: it says which queries have to look again. What changed while there was
// no stream is not lost: whenever one opens, everything that was asked before is asked again.

export interface Link {
  up: boolean
  since: number
}

let link: Link = { up: true, since: Date.now() }
const listeners = new Set<() => void>()

function tell(up: boolean) {
  if (link.up === up) return
  link = { up, since: Date.now() }
  for (const l of listeners) l()
}

export function useLink(): Link {
  return useSyncExternalStore(
    (l) => {
      listeners.add(l)
      return () => listeners.delete(l)
    },
    () => link,
  )
}

/** The nouns whose queries an event makes old. */
export function touched(event: string): string[] {
  if (event.startsWith('session_') || event.startsWith('kernel_')) return ['session', 'resource']
  if (event.startsWith('bgtask_')) return ['folder']
  return []
}

const names = [
  'session_enqueued',
  'session_scheduled',
  'session_preparing',
  'session_started',
  'session_cancelled',
  'session_terminating',
  'session_terminated',
  'session_success',
  'session_failure',
  'session_idle_warning',
  'session_folder_withheld',
  'session_device_lost',
  'kernel_pulling',
  'kernel_out_of_memory',
  'kernel_preparing',
  'kernel_creating',
  'kernel_started',
  'kernel_terminating',
  'kernel_terminated',
]

/** The beginnings of the keys of queries that a change of an object other than a session makes old, by its noun. */
const objects: Record<string, string[]> = {
  folder: ['folder'],
  agent: ['resource'],
  user: ['tenancy'],
  keypair: ['tenancy'],
  project: ['tenancy', 'resource'],
  domain: ['tenancy'],
  'keypair-policy': ['tenancy', 'resource'],
  'user-policy': ['tenancy', 'resource'],
  'project-policy': ['tenancy', 'resource'],
  'resource-group': ['resource', 'tenancy'],
  preset: ['resource'],
  image: ['image'],
  task: ['folder', 'image'],
  announcement: ['operation/announcement'],
  invitation: ['folder/invitations'],
  circuit: ['session/circuits', 'session/apps'],
}

/** Why sessions wait, and when they would start. On a busy cluster that changes all the time. */
const queue = ['session/queue', 'session/mine', 'session/one', 'session/list', 'resource/scheduler']

/** How long changes are gathered before queries look again. */
const gather = 120
/** How long changes of a queue are. */
const gatherQueue = 2000
/** How often the stream is tried again. */
const again = [500, 1000, 2000, 5000, 10000]

export interface Happened {
  event: string
  sessionId: string
  sessionName: string
  detail: string
}

const ears = new Set<(h: Happened) => void>()

/** Tells the ear what happens, until the returned function is called. */
export function hear(ear: (h: Happened) => void) {
  ears.add(ear)
  return () => {
    ears.delete(ear)
  }
}

/** Tells every ear of an event. */
export function announce(h: Happened) {
  for (const ear of ears) ear(h)
}

/** A stream that breaks does not say why: the cluster is away, or the login has ended. */
async function probe(): Promise<boolean> {
  const state = await server<{ authenticated: boolean }>('/login-check')
  if (!state.authenticated) expire()
  return true
}

/** Asks again what was asked until now, of one noun or of all: it may have changed before the answer was made or the stream could tell. */
function askAgain(client: QueryClient, of: QueryFilters = {}) {
  // A first answer that is on its way is not asked for a second time beside it, but once it is here.
  const first = client.getQueryCache().findAll({ ...of, fetchStatus: 'fetching', predicate: (q) => q.state.data === undefined })
  void client.invalidateQueries(of)
  for (const { promise, queryKey } of first) {
    const old = () => setTimeout(() => void client.invalidateQueries({ queryKey, exact: true }))
    promise?.then(old, () => {})
  }
}

/** Follows changes until the returned function is called. */
export function follow(
  client: QueryClient,
  onEvent: (h: Happened) => void,
  open: (url: string) => EventSource = (u) => new EventSource(u),
) {
  let source: EventSource | undefined
  let tries = 0
  let timer: ReturnType<typeof setTimeout> | undefined
  let pending: ReturnType<typeof setTimeout> | undefined
  let moving: ReturnType<typeof setTimeout> | undefined
  let stopped = false
  const old = new Set<string>()

  const look = (noun: string) => {
    old.add(noun)
    pending ??= setTimeout(() => {
      pending = undefined
      for (const n of old) askAgain(client, { queryKey: n.split('/') })
      old.clear()
    }, gather)
  }
  const start = () => {
    if (stopped) return
    source = open('/func/events/session?sessionName=&objects=true')
    source.onopen = () => {
      askAgain(client)
      tries = 0
      tell(true)
    }
    source.onerror = () => {
      source?.close()
      probe().then(
        () => stopped || tell(true),
        () => stopped || tell(false),
      )
      timer = setTimeout(start, again[Math.min(tries, again.length - 1)])
      tries++
    }
    for (const name of names) {
      source.addEventListener(name, (e) => {
        for (const n of touched(name)) look(n)
        try {
          const d = JSON.parse((e as MessageEvent<string>).data) as Record<string, string>
          onEvent({ event: name, sessionId: d['sessionId'] ?? '', sessionName: d['sessionName'] ?? '', detail: d['detail'] ?? '' })
        } catch {
          // The queries look again all the same.
        }
      })
    }
    source.addEventListener('object_changed', (e) => {
      try {
        const { noun } = JSON.parse((e as MessageEvent<string>).data) as { noun: string }
        for (const n of objects[noun] ?? []) look(n)
        if (noun === 'queue')
          moving ??= setTimeout(() => {
            moving = undefined
            for (const n of queue) look(n)
          }, gatherQueue)
      } catch {
        askAgain(client)
      }
    })
    // More changed than the server says one by one.
    source.addEventListener('resync', () => askAgain(client))
    source.addEventListener('server_close', () => {
      source?.close()
      timer = setTimeout(start, again[0])
      tries++
    })
  }
  start()
  return () => {
    stopped = true
    source?.close()
    clearTimeout(timer)
    clearTimeout(pending)
    clearTimeout(moving)
    tell(true)
  }
}
