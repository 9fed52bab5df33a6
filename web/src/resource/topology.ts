import type { AgentSession } from '@/api/types'
import { amount, isMemory, slotName } from '@/design/amounts'
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

/** A piece of hardware that is neither a core nor memory. It may fill several slots; its device is that of the first. */
export interface Card extends Held {
  /** what people call it on this machine: GPU 0 */
  label: string
  slots: string[]
  healthy: boolean
  /** why it is not, where the agent says so */
  problem: string
}

/** A NUMA node of a machine; -1 gathers what lies on no known one. */
export interface Socket {
  numa: number
  cores: Held[]
  /** what is neither a core nor memory */
  others: Card[]
  memory: Held[]
}

const isCore = (d: Device) => d.Slot === 'cpu'
const familyOf = (d: Device) => d.Slot.replace(/\..*/, '')
const keyOf = (d: Device) => `${familyOf(d)} ${d.ID}`
/** Addresses on the bus are hexadecimal. */
const plain = (x: string, y: string) => (x < y ? -1 : x > y ? 1 : 0)
const natural = (x: string, y: string) => x.localeCompare(y, 'en', { numeric: true })

/** The hardware of a machine besides cores and memory, in the order of its addresses; hardware that fills several slots stands once. */
export function cardsOf(a: Pick<Agent, 'hardware'>, sessions: AgentSession[]): Card[] {
  const devices = a.hardware
    .filter((d) => !isCore(d) && !isMemory(d.Slot))
    .sort((x, y) => plain(x.PCI ?? '', y.PCI ?? '') || natural(x.ID, y.ID) || natural(x.Slot, y.Slot))
  const cards = new Map<string, Card>()
  const counts: Record<string, number> = {}
  for (const device of devices) {
    const held = heldOf(device, sessions)
    const known = cards.get(keyOf(device))
    if (!known) {
      const name = slotName(`${familyOf(device)}.device`)
      const n = counts[name] ?? 0
      counts[name] = n + 1
      cards.set(keyOf(device), {
        ...held,
        label: `${name} ${n}`,
        slots: [device.Slot],
        healthy: device.Healthy,
        problem: device.Healthy ? '' : (device.Problem ?? ''),
      })
      continue
    }
    known.slots.push(device.Slot)
    known.healthy &&= device.Healthy
    if (!device.Healthy) known.problem ||= device.Problem ?? ''
    for (const h of held.holders) {
      const same = known.holders.find((x) => x.session === h.session)
      if (same) same.part = Math.min(1, same.part + h.part)
      else known.holders.push(h)
    }
    known.part = sum(known.holders)
  }
  return [...cards.values()]
}

const sum = (holders: Holder[]) =>
  Math.min(
    1,
    holders.reduce((n, h) => n + h.part, 0),
  )

function heldOf(device: Device, sessions: AgentSession[]): Held {
  const all = device.Capacity / 1000
  const holders: Holder[] = []
  for (const session of sessions) {
    const n = amount(session.devices?.[device.Slot]?.[device.ID])
    if (n !== null && n > 0) holders.push({ session, part: all > 0 ? Math.min(1, n / all) : 1 })
  }
  return { device, holders, part: sum(holders) }
}

/** A machine as its agent describes it: NUMA nodes with what is on them and who holds it. Amounts of devices are in thousandths. */
export function socketsOf(a: Pick<Agent, 'hardware'>, sessions: AgentSession[]): Socket[] {
  const sockets = new Map<number, Socket>()
  // Where there is one node, all is on it.
  const known = [...new Set(a.hardware.map((d) => d.NUMA ?? -1).filter((n) => n >= 0))]
  const only = known.length === 1 ? known[0] : undefined
  const on = (d: Device) => {
    const numa = only ?? d.NUMA ?? -1
    let s = sockets.get(numa)
    if (!s) sockets.set(numa, (s = { numa, cores: [], others: [], memory: [] }))
    return s
  }
  for (const d of a.hardware)
    if (isCore(d)) on(d).cores.push(heldOf(d, sessions))
    else if (isMemory(d.Slot)) on(d).memory.push(heldOf(d, sessions))
  for (const c of cardsOf(a, sessions)) on(c.device).others.push(c)
  const byId = (x: Held, y: Held) => natural(x.device.Slot, y.device.Slot) || natural(x.device.ID, y.device.ID)
  const out = [...sockets.values()].sort((x, y) => (x.numa < 0 ? 1 : y.numa < 0 ? -1 : x.numa - y.numa))
  for (const s of out) for (const list of [s.cores, s.memory]) list.sort(byId)
  return out
}

/** Pairs of devices that are nearer to each other than their NUMA node makes them, the nearest first. Each pair stands once. */
export function linksOf(a: Pick<Agent, 'hardware'>): { from: Device; to: Device; distance: number }[] {
  const out: { from: Device; to: Device; distance: number }[] = []
  const seen = new Set<string>()
  const at = new Map(a.hardware.filter((d) => !isCore(d) && !isMemory(d.Slot)).map((d) => [d.ID, d]))
  for (const from of at.values())
    for (const [id, distance] of Object.entries(from.Links ?? {})) {
      const to = at.get(id)
      if (!to || to === from || distance >= sameNode) continue
      const key = [from.ID, id].sort().join('\n')
      if (seen.has(key)) continue
      seen.add(key)
      out.push({ from, to, distance })
    }
  return out.sort((x, y) => x.distance - y.distance || natural(x.from.ID, y.from.ID))
}

/** The class of distance of devices of one NUMA node (package alloc); what is nearer is a link of its own. */
const sameNode = 8

/** What joins cards: parts of one card, a direct link, one PCIe switch. */
export type Way = 'card' | 'direct' | 'switch'

/** Cards that are joined in one way: all with each other. */
export interface Joined {
  way: Way
  cards: Card[]
}

const wayOf = (distance: number): Way => (distance <= 1 ? 'card' : distance <= 2 ? 'direct' : 'switch')

/** The links of a machine in few lines: groups in which each card is joined with each other, and the pairs that are left. */
export function joinedOf(a: Pick<Agent, 'hardware'>, cards: Card[]): Joined[] {
  const at = new Map(cards.map((c, i) => [c.device.ID, i]))
  const near = new Map<Way, Map<number, Set<number>>>([
    ['card', new Map()],
    ['direct', new Map()],
    ['switch', new Map()],
  ])
  for (const l of linksOf(a)) {
    const [x, y] = [at.get(l.from.ID), at.get(l.to.ID)]
    if (x === undefined || y === undefined) continue
    const of = near.get(wayOf(l.distance))!
    of.set(x, (of.get(x) ?? new Set()).add(y))
    of.set(y, (of.get(y) ?? new Set()).add(x))
  }
  const out: Joined[] = []
  for (const [way, of] of near) {
    const done = new Set<number>()
    for (const first of [...of.keys()].sort((x, y) => x - y)) {
      if (done.has(first)) continue
      const group = [...reached(of, first)].sort((x, y) => x - y)
      for (const i of group) done.add(i)
      if (group.every((i) => of.get(i)!.size === group.length - 1)) out.push({ way, cards: group.map((i) => cards[i]!) })
      else for (const i of group) for (const j of of.get(i)!) if (i < j) out.push({ way, cards: [cards[i]!, cards[j]!] })
    }
  }
  return out
}

function reached(of: Map<number, Set<number>>, first: number): Set<number> {
  const out = new Set([first])
  for (const i of out) for (const j of of.get(i) ?? []) out.add(j) // a set that grows is walked to its end
  return out
}
