import { queryOptions, useMutation, useQueryClient } from '@tanstack/react-query'
import { func, funcBytes, funcText, gql, parsed, quoted } from '@/api/http'
import type { ComputeContainer, ComputeSession, SessionExplanation, Told } from '@/api/graph'
import type {
  CreatedSession,
  CreateSession,
  DeviceSession,
  SessionConfig,
  Explanation as WireExplanation,
  IdleCheck as WireIdleCheck,
  KeptAlive,
  SessionInfo,
  SessionMount,
  SessionMove,
  FileInfo,
} from '@/api/types'
import type { Page } from '@/design/paged'
import { live, over } from '@/design/state'
import { firstOf, tarOf } from './tar'

type Plain = Told<
  ComputeSession,
  | 'id'
  | 'name'
  | 'type'
  | 'image'
  | 'architecture'
  | 'status'
  | 'status_info'
  | 'result'
  | 'user_email'
  | 'group_name'
  | 'scaling_group'
  | 'created_at',
  'status_changed' | 'terminated_at' | 'startup_command'
>

/** A session with what is JSON inside of text on the wire. */
export interface Session extends Plain {
  slots: Record<string, string>
  why: string
  estimate: string | null
  apps: { name: string; protocol: string }[]
}

const fields = `id name type image architecture status status_info status_changed result user_email group_name scaling_group created_at terminated_at
  startup_command occupying_slots requested_slots service_ports explanation { msg estimate }`

type Raw = Plain &
  Told<ComputeSession, 'occupying_slots' | 'requested_slots' | 'service_ports'> & {
    explanation: Pick<SessionExplanation, 'msg' | 'estimate'> | null
  }

function sessionOf(r: Raw): Session {
  const held = parsed<Record<string, string>>(r.occupying_slots, {})
  return {
    ...r,
    slots: Object.keys(held).length ? held : parsed(r.requested_slots, {}),
    why: r.explanation?.msg ?? r.status_info ?? '',
    estimate: r.explanation?.estimate ?? null,
    apps: parsed(r.service_ports, []),
  }
}

export interface SessionFilter {
  status?: string | undefined
  type?: string | undefined
  owner?: string | undefined
  q?: string | undefined
  order?: string | undefined
}

/** The conditions of a list, in the filter language of the cluster. */
export function filterOf(f: SessionFilter, me: string): { filter: string; status: string } {
  const out: string[] = []
  if (f.q) out.push(`name ilike ${quoted(`%${f.q.replace(/[%_]/g, '\\$&')}%`)}`)
  if (f.type) out.push(`type == ${quoted(f.type)}`)
  if (f.owner === 'me') out.push(`user_email == ${quoted(me)}`)
  else if (f.owner) out.push(`user_email == ${quoted(f.owner)}`)
  if (f.status === 'failed') out.push('(status == "ERROR" | result == "failure")')
  const groups: Record<string, string[]> = { live, waiting: ['PENDING'], running: ['RUNNING'], ended: over, failed: over }
  return { filter: out.join(' & '), status: (groups[f.status ?? 'live'] ?? (f.status === 'all' ? [] : live)).join(',') }
}

export async function listSessions(
  f: SessionFilter,
  me: string,
  limit: number,
  offset: number,
  signal?: AbortSignal,
): Promise<Page<Session>> {
  const { filter, status } = filterOf(f, me)
  const d = await gql<{ compute_session_list: { total_count: number; items: Raw[] } }>(
    `query($limit: Int!, $offset: Int!, $filter: String, $order: String, $status: String) {
      compute_session_list(limit: $limit, offset: $offset, filter: $filter, order: $order, status: $status) { total_count items { ${fields} } } }`,
    { limit, offset, filter: filter || null, order: f.order ?? '-created_at', status: status || null },
    signal,
  )
  return { total: d.compute_session_list.total_count, items: d.compute_session_list.items.map(sessionOf) }
}

export const mineQuery = (me: string) =>
  queryOptions({
    queryKey: ['session', 'mine', me],
    queryFn: ({ signal }) => listSessions({ owner: 'me', status: 'live' }, me, 50, 0, signal),
  })

export const recentQuery = (me: string) =>
  queryOptions({
    queryKey: ['session', 'recent', me],
    queryFn: ({ signal }) => listSessions({ owner: 'me', status: 'ended', order: '-terminated_at' }, me, 8, 0, signal),
  })

export const queueQuery = queryOptions({
  queryKey: ['session', 'queue'],
  queryFn: ({ signal }) => listSessions({ status: 'waiting', order: 'created_at' }, '', 50, 0, signal),
})

export const searchSessionsQuery = (text: string) =>
  queryOptions({
    queryKey: ['session', 'search', text],
    staleTime: 2000,
    queryFn: async ({ signal }) => (await listSessions(text ? { q: text, status: 'all' } : { status: 'live' }, '', 8, 0, signal)).items,
  })

type PlainKernel = Told<
  ComputeContainer,
  'id' | 'cluster_role' | 'cluster_idx' | 'cluster_hostname' | 'status' | 'status_info',
  'exit_code' | 'agent'
>
export interface Kernel extends PlainKernel {
  stat: Stat
  slots: Record<string, string>
}

/** What was measured of a kernel; what was not is absent. */
export type Stat = Record<string, { current: string; capacity?: string; unit_hint?: string }>

export type Mount = SessionMount
export type IdleCheck = Pick<WireIdleCheck, 'remaining' | 'phase' | 'why' | 'ends_at' | 'source' | 'dry_run'>
export type Explanation = Told<SessionExplanation, 'reason' | 'msg', 'position' | 'queue' | 'estimate' | 'remedies'>

type Detail = Told<ComputeSession, 'full_name' | 'priority' | 'cluster_mode' | 'cluster_size', 'tag'>
export interface SessionDetail extends Session, Detail {
  data: Record<string, unknown>
  history: Record<string, string>
  idle: Record<string, IdleCheck>
  opts: Record<string, string>
  kernels: Kernel[]
  explanation: Explanation | null
}

type RawDetail = Omit<Raw, 'explanation'> &
  Detail &
  Told<ComputeSession, 'status_data' | 'status_history' | 'idle_checks' | 'resource_opts'> & {
    explanation: Explanation | null
    containers: (PlainKernel & Told<ComputeContainer, 'occupied_slots', 'live_stat' | 'last_stat'>)[]
  }

export const sessionQuery = (id: string) =>
  queryOptions({
    queryKey: ['session', 'one', id],
    queryFn: async ({ signal }): Promise<SessionDetail | null> => {
      const d = await gql<{ compute_session: RawDetail | null }>(
        `query($id: UUID!) { compute_session(id: $id) { id name type image architecture status status_info status_changed result user_email group_name
        scaling_group created_at terminated_at startup_command occupying_slots requested_slots service_ports full_name priority tag cluster_mode
        cluster_size status_data status_history idle_checks resource_opts explanation { reason msg position queue estimate remedies }
        containers { id cluster_role cluster_idx cluster_hostname status status_info exit_code agent live_stat last_stat occupied_slots } } }`,
        { id },
        signal,
      )
      const r = d.compute_session
      if (!r) return null
      return {
        ...sessionOf(r),
        full_name: r.full_name,
        priority: r.priority,
        tag: r.tag,
        cluster_mode: r.cluster_mode,
        cluster_size: r.cluster_size,
        data: parsed(r.status_data, {}),
        history: parsed(r.status_history, {}),
        idle: parsed(r.idle_checks, {}),
        opts: parsed(r.resource_opts, {}),
        explanation: r.explanation,
        kernels: r.containers.map((c) => ({
          ...c,
          stat: parsed<Stat>(c.live_stat, parsed<Stat>(c.last_stat, {})),
          slots: parsed(c.occupied_slots, {}),
        })),
      }
    },
    // Figures come every few seconds, and no event tells of them.
    refetchInterval: (q) => (q.state.data && over.includes(q.state.data.status) ? false : 5_000),
  })

/** The wire has the environment as JSON inside of text. */
export type Info = Pick<SessionInfo, 'vfolder_mounts' | 'exitCode'> & { environ: string }

export const sessionInfoQuery = (id: string) =>
  queryOptions({ queryKey: ['session', 'info', id], queryFn: () => func<Info>(`/session/${id}`) })

export type Move = SessionMove

export const movesQuery = (id: string) =>
  queryOptions({
    queryKey: ['session', 'moves', id],
    queryFn: async () => (await func<{ moves: Move[] }>(`/session/${id}/status-history`)).moves,
  })

/** What the containers of a session hold of their agents, and how busy that is. Figures come every few seconds, and no event tells of them. */
export const devicesQuery = (id: string) =>
  queryOptions({
    queryKey: ['session', 'devices', id],
    refetchInterval: 5_000,
    queryFn: ({ signal }) => func<DeviceSession>(`/session/${id}/devices`, { signal }),
  })

export const logText = (id: string, kernel?: string) => funcText(`/session/${id}/logs`, kernel ? { query: { kernel_id: kernel } } : {})

/** A session as this console asks for it: it is never waited for. */
export type CreateBody = Omit<CreateSession, 'maxWaitSeconds' | 'config'> &
  Required<Pick<CreateSession, 'type' | 'group'>> & { config: SessionConfig & Required<Pick<SessionConfig, 'resources'>> }

/** What would happen. */
export type DryRun = WireExplanation

export const dryRun = (body: CreateBody, signal: AbortSignal) => func<DryRun>('/session', { body, query: { dry_run: true }, signal })
export const createSession = (body: CreateBody) => func<CreatedSession>('/session', { body })
export const endSession = (id: string, forced = false) =>
  func<unknown>(`/session/${id}`, { method: 'DELETE', query: { wait: 0, ...(forced ? { forced: true } : {}) } })

/** Ends sessions. What was refused is told one by one; the rest is done. */
export function useEnd() {
  const client = useQueryClient()
  return useMutation({
    mutationFn: async (ids: string[]) => {
      const done = await Promise.allSettled(ids.map((id) => endSession(id)))
      const failed = done.find((d): d is PromiseRejectedResult => d.status === 'rejected')
      if (failed) throw failed.reason
    },
    onSettled: () => client.invalidateQueries({ queryKey: ['session'] }),
  })
}

export const keepAlive = (id: string, length: string) => func<KeptAlive>(`/session/${id}/keep-alive`, { body: { for: length } })

export type SessionFile = Pick<FileInfo, 'filename' | 'mode' | 'size' | 'mtime'>

export const sessionFilesQuery = (id: string, path: string) =>
  queryOptions({
    queryKey: ['session', 'files', id, path],
    queryFn: async ({ signal }) => {
      const r = await func<{ files: string; abspath: string }>(`/session/${id}/files`, { query: { path }, signal })
      return { files: parsed<SessionFile[]>(r.files, []), at: r.abspath }
    },
  })

/** A file of a session. It comes inside of a tar. */
export async function sessionFile(id: string, path: string): Promise<Blob | null> {
  const file = firstOf(await funcBytes(`/session/${id}/download_single`, { query: { file: path } }))
  return file && new Blob([file as Uint8Array<ArrayBuffer>])
}

/** Where the browser takes a directory or a large file of a session as a tar. */
export const sessionTarAddress = (id: string, path: string) => `/func/session/${id}/download_single?file=${encodeURIComponent(path)}`

export const sendFiles = (id: string, files: { path: string; file: File }[]) => func<null>(`/session/${id}/upload`, { raw: tarOf(files) })

export const commitSession = (id: string, filename: string) =>
  func<{ bgtask_id: string }>(`/session/${id}/commit`, { body: filename ? { filename } : {} })

/** Whether an image of the session is being saved. */
export const commitQuery = (id: string) =>
  queryOptions({
    queryKey: ['session', 'commit', id],
    queryFn: () => func<{ status: string }>(`/session/${id}/commit`),
    refetchInterval: (q) => (q.state.data?.status === 'ongoing' ? 1500 : false),
  })
