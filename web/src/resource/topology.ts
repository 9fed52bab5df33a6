import type { AgentSession } from '@/api/types'
import { amount, isMemory } from '@/design/amounts'
import type { Agent, Device } from './queries'

/** What a session holds of a device. */
export interface Holder {
  session: AgentSession
  /** of the device, from 0 to 1 */
  part: number
}

export interface Held {
  device: Device
  holders: Holder[]
  /** how much of it is held, from 0 to 1 */
  part: number
}

/** A NUMA node of a machine; -1 gathers what lies on no known one. */
export interface Socket {
  numa: number
  cores: Held[]
  /** what is neither a core nor memory */
  others: Held[]
  memory: Held[]
}

const isCore = (d: Device) => d.Slot === 'cpu'

/** A machine as its agent describes it: NUMA nodes with what is on them and who holds it. Amounts of devices are in thousandths. */
export function socketsOf(a: Pick<Agent, 'hardware'>, sessions: AgentSession[]): Socket[] {
  const sockets = new Map<number, Socket>()
  // Where there is one node, all is on it.
  const known = [...new Set(a.hardware.map((d) => d.NUMA ?? -1).filter((n) => n >= 0))]
  const only = known.length === 1 ? known[0] : undefined
  for (const device of a.hardware) {
    const numa = only ?? device.NUMA ?? -1
    let s = sockets.get(numa)
    if (!s) sockets.set(numa, (s = { numa, cores: [], others: [], memory: [] }))
    const all = device.Capacity / 1000
    const holders: Holder[] = []
    for (const session of sessions) {
      const n = amount(session.devices?.[device.Slot]?.[device.ID])
      if (n !== null && n > 0) holders.push({ session, part: all > 0 ? Math.min(1, n / all) : 1 })
    }
    const held = {
      device,
      holders,
      part: Math.min(
        1,
        holders.reduce((sum, h) => sum + h.part, 0),
      ),
    }
    ;(isCore(device) ? s.cores : isMemory(device.Slot) ? s.memory : s.others).push(held)
  }
  const byId = (x: Held, y: Held) =>
    x.device.Slot.localeCompare(y.device.Slot) || x.device.ID.localeCompare(y.device.ID, undefined, { numeric: true })
  const out = [...sockets.values()].sort((x, y) => (x.numa < 0 ? 1 : y.numa < 0 ? -1 : x.numa - y.numa))
  for (const s of out) for (const list of [s.cores, s.others, s.memory]) list.sort(byId)
  return out
}

/** Pairs of devices that are nearer to each other than their NUMA node makes them, the nearest first. Each pair stands once. */
export function linksOf(a: Pick<Agent, 'hardware'>): { from: Device; to: Device; distance: number }[] {
  const out: { from: Device; to: Device; distance: number }[] = []
  const at = new Map(a.hardware.filter((d) => !isCore(d) && !isMemory(d.Slot)).map((d) => [d.ID, d]))
  for (const from of at.values())
    for (const [id, distance] of Object.entries(from.Links ?? {})) {
      const to = at.get(id)
      if (!to || to === from || distance >= sameNode) continue
      if (out.some((l) => l.from === to && l.to === from)) continue
      out.push({ from, to, distance })
    }
  return out.sort((x, y) => x.distance - y.distance || x.from.ID.localeCompare(y.from.ID, undefined, { numeric: true }))
}

/** The class of distance of devices of one NUMA node (package alloc); what is nearer is a link of its own. */
const sameNode = 8
