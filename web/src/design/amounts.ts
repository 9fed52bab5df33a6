import { currentLanguage, t } from '@/words'

const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB']

/** Bytes as people read them: "1.5 GiB"; unknown is "–". */
export function bytes(n: number | string | null | undefined): string {
  const v = amount(n)
  if (v === null) return '–'
  if (!Number.isFinite(v)) return '∞'
  let i = 0
  let x = v
  while (Math.abs(x) >= 1024 && i < units.length - 1) {
    x /= 1024
    i++
  }
  return `${x >= 100 || i === 0 || Number.isInteger(x) ? Math.round(x) : x.toFixed(1)} ${units[i]}`
}

/** A number of the wire, which may be text; null where it is unknown. */
export function amount(n: number | string | null | undefined): number | null {
  if (n === null || n === undefined || n === '' || n === 'NaN') return null
  if (n === 'Infinity') return Infinity
  const v = Number(n)
  return Number.isNaN(v) ? null : v
}

export function isMemory(slot: string): boolean {
  return slot === 'mem' || slot.endsWith('-mem')
}

/** An amount of a slot with its unit. */
export function slotAmount(slot: string, n: number | string | null | undefined): string {
  if (isMemory(slot)) return bytes(n)
  const v = amount(n)
  if (v === null) return '–'
  if (!Number.isFinite(v)) return '∞'
  return Number.isInteger(v) ? String(v) : v.toFixed(2).replace(/0+$/, '')
}

/** What people call a slot. */
export function slotName(slot: string): string {
  if (slot === 'cpu') return 'CPU'
  if (slot === 'mem') return currentLanguage() === 'ko' ? '메모리' : 'Memory'
  const family = slot.replace(/\..*/, '')
  const kind = slot.slice(family.length + 1)
  const name = family === 'cuda' || family === 'rocm' ? 'GPU' : family.toUpperCase()
  if (kind === 'shares') return name + (currentLanguage() === 'ko' ? ' 지분' : ' share')
  return kind === '' || kind === 'device' ? name : `${name} ${kind}` // an instance of a GPU that is cut: GPU 1g.10gb-mig
}

/** An amount of a slot as people say it: "half a GPU", "2 GPU", "4 GiB". */
export function slotWords(slot: string, n: number | string | null | undefined): string {
  const v = amount(n)
  if (isMemory(slot) || v === null) return slotAmount(slot, n)
  if (!slot.endsWith('.shares')) return `${slotAmount(slot, v)} ${slotName(slot)}`
  const of = slotName(slot.replace(/shares$/, 'device'))
  if (v === 0.25 || v === 0.5 || v === 0.75) return t(`part.${String(v * 4) as '1' | '2' | '3'}`, { of })
  return `${slotAmount(slot, v)} ${of}`
}

/** All slots of a request in one line: "2 CPU · 4 GiB". */
export function slotLine(slots: Record<string, string | number | null | undefined>): string {
  return order(Object.keys(slots))
    .filter((s) => amount(slots[s]) !== 0)
    .map((s) =>
      // Where whole devices stand beside it, a share has its own name.
      s.endsWith('.shares') && amount(slots[s.replace(/shares$/, 'device')])
        ? `${slotAmount(s, slots[s])} ${slotName(s)}`
        : slotWords(s, slots[s]),
    )
    .join(' · ')
}

/** Slots in the order in which people look at them. */
export function order(slots: string[]): string[] {
  const rank = (s: string) => (s === 'cpu' ? 0 : s === 'mem' ? 1 : 2)
  return [...slots].sort((a, b) => rank(a) - rank(b) || a.localeCompare(b))
}
