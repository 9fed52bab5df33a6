// The one way to the cluster. No component calls fetch: it uses a query of its noun, and the query uses this.

/** What went wrong, in the words of the cluster: what happened, to what, why, and what to do next. */
export class Problem extends Error {
  constructor(
    readonly status: number,
    readonly type: string,
    readonly title: string,
    readonly msg: string,
    readonly next: string,
    readonly requestId: string,
    readonly data: unknown = undefined,
  ) {
    super(msg || title)
    this.name = 'Problem'
  }

  /** The end of the type, such as "object-not-found". */
  get slug(): string {
    return this.type.slice(this.type.lastIndexOf('/') + 1)
  }

  /** Whether the same request may work when it is sent again. */
  get passing(): boolean {
    return this.status === 0 || this.status === 429 || this.status >= 500
  }

  /** What happened, without the advice that `msg` ends with. */
  get what(): string {
    const tail = '; ' + this.next
    return this.next && this.msg.endsWith(tail) ? this.msg.slice(0, -tail.length) : this.msg || this.title
  }
}

type Listener = () => void
const expired = new Set<Listener>()

/** Calls the listener whenever the cluster says that nobody is logged in. */
export function onExpired(l: Listener): () => void {
  expired.add(l)
  return () => expired.delete(l)
}

/** Says that nobody is logged in any more. */
export function expire() {
  for (const l of expired) l()
}

interface Options {
  method?: string
  body?: unknown
  query?: Record<string, string | number | boolean | undefined>
  signal?: AbortSignal
  text?: boolean
  /** Bytes that are sent as they are. */
  raw?: Blob
  /** A login that is refused is an answer, not an expired login. */
  anonymous?: boolean
}

export function address(path: string, query?: Options['query']): string {
  const q = new URLSearchParams()
  for (const [k, v] of Object.entries(query ?? {})) if (v !== undefined) q.set(k, String(v))
  const tail = q.toString()
  return tail ? `${path}?${tail}` : path
}

export async function problemOf(r: Response): Promise<Problem> {
  const raw = await r.text().catch(() => '')
  let p: Record<string, unknown> = {}
  try {
    p = JSON.parse(raw) as Record<string, unknown>
  } catch {
    // A proxy in front answers without a problem document.
  }
  const text = (k: string) => (typeof p[k] === 'string' ? (p[k] as string) : '')
  return new Problem(
    r.status,
    text('type'),
    text('title') || `HTTP ${r.status}`,
    text('msg') || text('details'),
    text('next'),
    text('request_id') || (r.headers.get('X-BackendAI-Request-ID') ?? ''),
    p['data'],
  )
}

async function send(path: string, o: Options): Promise<Response> {
  const headers: Record<string, string> = { 'X-BackendAI-Version': 'v8.20240915' }
  if (o.body !== undefined) headers['Content-Type'] = 'application/json'
  if (o.raw) headers['Content-Type'] = o.raw.type
  if (o.text) headers['Accept'] = 'text/plain'
  let r: Response
  try {
    r = await fetch(address(path, o.query), {
      method: o.method ?? (o.body === undefined && !o.raw ? 'GET' : 'POST'),
      headers,
      credentials: 'same-origin',
      signal: o.signal ?? null,
      body: o.raw ?? (o.body === undefined ? null : JSON.stringify(o.body)),
    })
  } catch (err) {
    if (o.signal?.aborted) throw err
    throw new Problem(
      0,
      'unreachable',
      'The cluster does not answer.',
      'The cluster does not answer.',
      'Check the network; the page tries again by itself.',
      '',
    )
  }
  if (!r.ok) {
    const p = await problemOf(r)
    if (r.status === 401 && !o.anonymous) expire()
    throw p
  }
  return r
}

async function decode<T>(r: Response): Promise<T> {
  if (r.status === 204) return null as T
  const raw = await r.text()
  return (raw === '' ? null : JSON.parse(raw)) as T
}

/** Asks a manager. */
export async function func<T>(path: string, o: Options = {}): Promise<T> {
  return decode<T>(await send('/func' + path, o))
}

/** Asks a manager for text. */
export async function funcText(path: string, o: Options = {}): Promise<string> {
  return (await send('/func' + path, { ...o, text: true })).text()
}

/** Asks a manager for bytes. */
export async function funcBytes(path: string, o: Options = {}): Promise<Uint8Array> {
  return new Uint8Array(await (await send('/func' + path, o)).arrayBuffer())
}

/** An answer of a storage proxy, whose address has the right to it inside. It is never kept. */
export async function foreign(url: string, o: { range?: number; signal?: AbortSignal } = {}): Promise<Response> {
  let r: Response
  try {
    r = await fetch(url, {
      credentials: 'omit',
      cache: 'no-store',
      signal: o.signal ?? null,
      ...(o.range ? { headers: { Range: `bytes=0-${o.range - 1}` } } : {}),
    })
  } catch (err) {
    if (o.signal?.aborted) throw err
    throw new Problem(0, 'unreachable', 'The storage does not answer.', 'The storage does not answer.', 'Try again in some seconds.', '')
  }
  if (!r.ok && r.status !== 416) throw await problemOf(r)
  return r
}

/** Follows an answer of text as it comes. */
export async function funcStream(path: string, o: Options, onText: (chunk: string) => void): Promise<void> {
  const r = await send('/func' + path, { ...o, text: true })
  const reader = r.body?.pipeThrough(new TextDecoderStream()).getReader()
  for (;;) {
    const part = await reader?.read()
    if (!part || part.done) return
    onText(part.value)
  }
}

/** Asks the web server itself, about logins. */
export async function server<T>(path: string, body: unknown = {}): Promise<T> {
  return decode<T>(await send('/server' + path, { body, anonymous: true }))
}

interface GraphAnswer<T> {
  data?: T | null
  errors?: { message: string; extensions?: { type?: string; next?: string } }[]
}

/** Asks by GraphQL. An error of any field is an error of the whole. */
export async function gql<T>(query: string, variables: Record<string, unknown> = {}, signal?: AbortSignal): Promise<T> {
  const o: Options = { body: { query, variables } }
  if (signal) o.signal = signal
  const r = await send('/func/admin/gql', o)
  const a = await decode<GraphAnswer<T>>(r)
  const bad = a.errors?.[0]
  if (bad || !a.data) {
    throw new Problem(
      400,
      bad?.extensions?.type ?? 'graphql',
      bad?.message ?? 'No answer.',
      bad?.message ?? '',
      bad?.extensions?.next ?? '',
      r.headers.get('X-BackendAI-Request-ID') ?? '',
    )
  }
  return a.data
}

/** Changes by GraphQL: mutations say `ok` and `msg`. */
export async function mutate<T>(query: string, variables: Record<string, unknown> = {}): Promise<T> {
  const data = await gql<Record<string, { ok?: boolean; msg?: string }>>(query, variables)
  for (const reply of Object.values(data)) {
    if (reply && reply.ok === false) throw new Problem(400, 'refused', reply.msg ?? 'It was refused.', reply.msg ?? '', '', '')
  }
  return data as T
}

/** JSON inside of text, as older parts of the wire have it. */
export function parsed<T>(text: unknown, otherwise: T): T {
  if (text === null || text === undefined || text === '') return otherwise
  if (typeof text !== 'string') return text as T
  try {
    return JSON.parse(text) as T
  } catch {
    return otherwise
  }
}

/** A text as the filter language of lists quotes it. */
export function quoted(s: string): string {
  return '"' + s.replace(/\\/g, '\\\\').replace(/"/g, '\\"') + '"'
}

/** The condition that a field holds a text, in any case; none for no text. */
export function containing(field: string, q: string | undefined): string | null {
  return q ? `${field} ilike ${quoted(`%${q.replace(/[%_]/g, '\\$&')}%`)}` : null
}

/** Asks the web server for something that needs no login. */
export async function serverGet<T>(path: string): Promise<T> {
  return decode<T>(await send('/server' + path, { anonymous: true }))
}

/** Asks a manager before anybody is logged in. */
export async function funcAnonymous<T>(path: string, body: unknown): Promise<T> {
  return decode<T>(await send('/func' + path, { body, anonymous: true }))
}
