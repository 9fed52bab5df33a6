import { slotName } from '@/design/amounts'
import { t } from '@/words'

/** A choice of accelerators in words that people use, and the amounts of slots that it means. */
export interface Part {
  key: string
  words: string
  slots: Record<string, number>
}

/**
 * The choices for each family of accelerators whose devices may be shared: none, parts of one, whole ones. What is shared and what is whole
 * are slots of the same devices, so that a choice sets both.
 */
export function partsOf(slots: string[]): { family: string; name: string; choices: Part[] }[] {
  const out = []
  for (const shares of slots.filter((s) => s.endsWith('.shares')).sort()) {
    const family = shares.slice(0, -'.shares'.length)
    const device = `${family}.device`
    const name = slotName(device)
    const whole = (n: number): Record<string, number> => (slots.includes(device) ? { [shares]: 0, [device]: n } : { [shares]: n })
    const part = (n: number): Record<string, number> => (slots.includes(device) ? { [shares]: n, [device]: 0 } : { [shares]: n })
    out.push({
      family,
      name,
      choices: [
        { key: '0', words: t('part.none', { of: name }), slots: whole(0) },
        { key: '0.25', words: t('part.1', { of: name }), slots: part(0.25) },
        { key: '0.5', words: t('part.2', { of: name }), slots: part(0.5) },
        { key: '1', words: t('part.whole', { of: name }), slots: whole(1) },
        { key: '2', words: t('part.two', { of: name }), slots: whole(2) },
      ],
    })
  }
  return out
}

/** Whether the amounts of a draft are those of a choice; what is not there is nothing. */
export const isChosen = (p: Part, have: Record<string, number>) => Object.entries(p.slots).every(([s, n]) => (have[s] ?? 0) === n)
