import { amount } from '@/design/amounts'
import type { CreateBody, Info, SessionDetail } from './queries'

/** What somebody fills in to start a session. */
export interface Draft {
  name: string
  image: string
  architecture: string
  type: 'interactive' | 'batch'
  command: string
  preset: string
  slots: Record<string, number>
  shm: string
  group: string
  mounts: { id: string; name: string; target: string }[]
  env: { name: string; value: string }[]
  clusterSize: number
  clusterMode: string
  startsAt: string
  timeout: string
  priority: number | null
  bootstrap: string
}

export const blank: Draft = {
  name: '',
  image: '',
  architecture: '',
  type: 'interactive',
  command: '',
  preset: '',
  slots: {},
  shm: '',
  group: '',
  mounts: [],
  env: [],
  clusterSize: 1,
  clusterMode: 'single-node',
  startsAt: '',
  timeout: '',
  priority: null,
  bootstrap: '',
}

const nameRule = /^[A-Za-z0-9][A-Za-z0-9_.-]{2,62}[A-Za-z0-9]$/

/** What is wrong with a draft, by field. Whatever else may be wrong the cluster says. */
export function faultsOf(d: Draft): Partial<Record<'name' | 'image' | 'command' | 'env' | 'mounts', string>> {
  const out: ReturnType<typeof faultsOf> = {}
  if (!nameRule.test(d.name)) out.name = 'new.bad.name'
  if (!d.image) out.image = 'new.bad.image'
  if (d.type === 'batch' && !d.command.trim()) out.command = 'new.bad.command'
  if (d.env.some((e) => e.value && !/^[A-Za-z_][A-Za-z0-9_]*$/.test(e.name))) out.env = 'new.bad.env'
  const targets = d.mounts.map((m) => m.target || m.name)
  if (new Set(targets).size < targets.length) out.mounts = 'new.bad.mounts'
  return out
}

/** The request that a draft means. */
export function bodyOf(d: Draft, project: string): CreateBody {
  const resources: Record<string, string> = {}
  for (const [slot, n] of Object.entries(d.slots)) if (n > 0) resources[slot] = String(n)
  const body: CreateBody = {
    name: d.name,
    image: d.image,
    type: d.type,
    group: project,
    enqueueOnly: true,
    reuseIfExists: false,
    config: { resources },
  }
  if (d.architecture) body.architecture = d.architecture
  if (d.type === 'batch') {
    body.startupCommand = d.command
    if (d.startsAt) body.starts_at = new Date(d.startsAt).toISOString()
    if (d.timeout) body.batch_timeout = d.timeout
  }
  if (d.bootstrap.trim()) body.bootstrap_script = d.bootstrap
  if (d.priority !== null) body.priority = d.priority
  if (d.clusterSize > 1) {
    body.clusterSize = d.clusterSize
    body.clusterMode = d.clusterMode
  }
  if (d.shm) body.config.resource_opts = { shmem: d.shm }
  if (d.group) body.config.scalingGroup = d.group
  const env = d.env.filter((e) => e.name)
  if (env.length) body.config.environ = Object.fromEntries(env.map((e) => [e.name, e.value]))
  if (d.mounts.length) {
    body.config.mounts = d.mounts.map((m) => m.name)
    const moved = d.mounts.filter((m) => m.target && m.target !== m.name)
    if (moved.length) body.config.mount_map = Object.fromEntries(moved.map((m) => [m.name, m.target]))
  }
  return body
}

function shell(s: string): string {
  return /^[A-Za-z0-9_./:=@%+,-]+$/.test(s) ? s : `'${s.replace(/'/g, `'\\''`)}'`
}

/** The same on the command line. */
export function cliOf(d: Draft): string {
  const out = ['berth session create', shell(d.image || 'IMAGE'), `--name ${shell(d.name || 'NAME')}`]
  for (const [slot, n] of Object.entries(d.slots)) {
    if (n > 0) out.push(`-r ${slot}=${slot === 'mem' ? sizeText(n) : n}`)
  }
  if (d.shm) out.push(`--resource-opt shmem=${d.shm}`)
  if (d.group) out.push(`--resource-group ${shell(d.group)}`)
  for (const m of d.mounts) out.push(`-v ${shell(m.target && m.target !== m.name ? `${m.name}:${m.target}` : m.name)}`)
  for (const e of d.env) if (e.name) out.push(`-e ${shell(`${e.name}=${e.value}`)}`)
  if (d.clusterSize > 1) out.push(`--cluster-size ${d.clusterSize}`)
  if (d.priority !== null) out.push(`--priority ${d.priority}`)
  if (d.type === 'batch') {
    out.push(`--batch ${shell(d.command)}`)
    if (d.timeout) out.push(`--batch-timeout ${shell(d.timeout)}`)
    if (d.startsAt) out.push(`--starts-at ${shell(new Date(d.startsAt).toISOString())}`)
  }
  return out.join(' ')
}

export function sizeText(n: number): string {
  for (const [unit, size] of [
    ['g', 1 << 30],
    ['m', 1 << 20],
  ] as const)
    if (n % size === 0) return `${n / size}${unit}`
  return String(n)
}

export function slotsOf(s: Record<string, string>): Record<string, number> {
  return Object.fromEntries(Object.entries(s).map(([k, v]) => [k, amount(v) ?? 0]))
}

const left = ['calm', 'brisk', 'amber', 'quiet', 'early', 'green', 'bold', 'keen', 'plain', 'warm', 'swift', 'north']
const right = ['harbor', 'anchor', 'pier', 'tide', 'sail', 'wharf', 'mast', 'gull', 'buoy', 'reef', 'cove', 'jetty']

/** A name that is easy to say, by a number from 0 up to 1. */
export function nameFor(r: number): string {
  const n = Math.floor(r * left.length * right.length * 90)
  return `${left[n % left.length]}-${right[Math.floor(n / left.length) % right.length]}-${10 + Math.floor(n / (left.length * right.length))}`
}

/** The name of another session like one: a number at its end grows. */
export function renewed(name: string): string {
  const m = /^(.*?)-(\d+)$/.exec(name)
  return (m ? `${m[1]}-${Number(m[2]) + 1}` : `${name}-2`).slice(0, 64)
}

/** The draft of a session like one that was. */
export function draftFrom(s: SessionDetail, info: Info): Draft {
  const env = Object.entries(JSON.parse(info.environ || '{}') as Record<string, string>)
  return {
    ...blank,
    name: renewed(s.name),
    image: s.image,
    architecture: s.architecture,
    type: s.type.toLowerCase() === 'batch' ? 'batch' : 'interactive',
    command: s.startup_command ?? '',
    slots: slotsOf(s.slots),
    group: s.scaling_group,
    clusterSize: s.cluster_size,
    clusterMode: s.cluster_mode,
    mounts: info.vfolder_mounts.map((m) => ({
      id: m.id.replace(/-/g, ''),
      name: m.name,
      target: m.target === `/home/work/${m.name}` ? '' : m.target,
    })),
    env: env.map(([name, value]) => ({ name, value })),
  }
}
