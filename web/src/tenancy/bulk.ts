import type { TenancyChange, TenancyResult } from '@/api/types'

/** How many changes one request carries out: few enough that it ends in time. */
export const stepSize = 20

export type Outcome = TenancyResult | null

export const isNewUser = (c: TenancyChange) => c.kind === 'user' && c.make

/** A password with more chance in it than anybody guesses, of letters that are not taken for each other. */
export function password(): string {
  const letters = 'abcdefghijkmnpqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ23456789'
  const out: string[] = []
  while (out.length < 16) {
    const a = crypto.getRandomValues(new Uint8Array(32))
    for (const n of a) if (n < letters.length * Math.floor(256 / letters.length) && out.length < 16) out.push(letters[n % letters.length]!)
  }
  return out.join('').replace(/(.{4})(?=.)/g, '$1-')
}

/**
 * Carries out changes step by step; each outcome is told as it comes. What was not sent yet stays as it is when `stopped` says so, or when
 * a request fails: planning again shows what is left.
 */
export async function carryOut(
  changes: TenancyChange[],
  apply: (step: TenancyChange[]) => Promise<TenancyResult[]>,
  told: (at: number, results: TenancyResult[]) => void,
  stopped: () => boolean,
): Promise<void> {
  for (let at = 0; at < changes.length && !stopped(); at += stepSize) {
    const step = changes.slice(at, at + stepSize).map(({ words: _, ...c }) => c)
    told(at, await apply(step))
  }
}
