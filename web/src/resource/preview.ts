import type { Limit, LimitLevel } from '@/api/types'
import { amount } from '@/design/amounts'

/** What a draft of a policy says of each thing, in the wire's units; null is no limit, and what is not there stays. */
export type Draft = Record<string, number | null>

/** One thing with what limits it now, and what would after the policy is saved. */
export interface Effect {
  kind: string
  what: string
  now: LimitLevel | null
  then: LimitLevel | null
  /** More is used already than the draft allows. */
  over: string | null
  changed: boolean
}

const size = (l: LimitLevel | null) => (l ? (amount(l.limit) ?? Infinity) : Infinity)
const least = (levels: LimitLevel[]): LimitLevel | null => levels.reduce<LimitLevel | null>((a, b) => (size(b) < size(a) ? b : a), null)

/** The names by which drafts know what limits count. */
export function draftKey(kind: string, what: string): string {
  return `${kind} ${what}`
}

/**
 * What a policy comes to for the person whose limits these are: the smallest of all levels, with the draft in place of what the policy
 * says. Levels that the policy does not set are not touched.
 */
export function effects(limits: Limit[], policy: string, draft: Draft): Effect[] {
  return limits.map((l) => {
    const key = draftKey(l.kind, l.what)
    const after = l.levels.map((level) =>
      level.policy === policy && key in draft ? { ...level, limit: draft[key] === null ? 'Infinity' : String(draft[key]) } : level,
    )
    const now = least(l.levels)
    const then = least(after)
    const tight = after.find((level, i) => level !== l.levels[i] && (amount(level.using) ?? 0) > size(level))
    return { kind: l.kind, what: l.what, now, then, over: tight?.using ?? null, changed: size(now) !== size(then) }
  })
}

/** Whether the policy says anything about these limits. */
export const concerns = (limits: Limit[], policy: string) => limits.some((l) => l.levels.some((level) => level.policy === policy))
