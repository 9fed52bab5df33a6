import { func, quoted } from '@/api/http'
import type { AuditEntry, AuditPage } from '@/api/types'
import type { Page } from '@/design/paged'

/** What the address says about which entries are shown. Moments are those of `toISOString`. */
export interface AuditSearch {
  q?: string
  result?: string
  action?: string
  who?: string
  domain?: string
  from?: string
  until?: string
}

const containing = (text: string) => quoted(`%${text.replace(/[\\%_]/g, '\\$&')}%`)
const moment = (text: string | undefined) => (text && !Number.isNaN(Date.parse(text)) ? new Date(text).toISOString() : undefined)

/** The conditions of a view of the log, in the filter language of the cluster. */
export function auditFilter(s: AuditSearch): string {
  const out: string[] = []
  if (s.q) {
    const like = containing(s.q)
    out.push(`(action ilike ${like} | object ilike ${like} | email ilike ${like})`)
  }
  // Nobody has done what was refused at a login: the account that was tried is the object.
  if (s.who) out.push(`(email ilike ${containing(s.who)} | (email == "" & object ilike ${containing(s.who)}))`)
  if (s.action) out.push(`action ilike ${containing(s.action)}`)
  if (s.result) out.push(`result == ${quoted(s.result)}`)
  if (s.domain) out.push(`domain_name == ${quoted(s.domain)}`)
  const [from, until] = [moment(s.from), moment(s.until)]
  if (from) out.push(`at >= ${quoted(from)}`)
  if (until) out.push(`at < ${quoted(until)}`)
  return out.join(' & ')
}

/** Who did it. Of a login that was refused nobody is known: only which account was tried, if there is one. */
export function whoOf(e: AuditEntry): { name: string; tried: boolean } {
  if (e.email) return { name: e.email, tried: false }
  return e.means || e.attempts ? { name: e.object, tried: true } : { name: '', tried: false }
}

export async function listAudit(filter: string, limit: number, offset: number, signal?: AbortSignal): Promise<Page<AuditEntry>> {
  const d = await func<AuditPage>('/audit', {
    query: { filter: filter || undefined, order: '-id', limit, offset },
    ...(signal ? { signal } : {}),
  })
  return { items: d.items, total: d.total_count }
}

const page = 100

/** The entries of a view as JSON lines, the newest first. No more than `most` are asked for; `whole` says whether that were all. */
export async function exportAudit(
  filter: string,
  signal: AbortSignal,
  onLines: (n: number) => void,
  most = 20_000,
): Promise<{ text: string; lines: number; whole: boolean }> {
  const lines: string[] = []
  let before: number | undefined
  for (;;) {
    // What happens meanwhile moves no page: each begins below the last id of the one before.
    const below = [filter, before === undefined ? '' : `id < ${before}`].filter(Boolean).join(' & ')
    const { items } = await listAudit(below, page, 0, signal)
    for (const e of items) lines.push(JSON.stringify(e) + '\n')
    before = items[items.length - 1]?.id
    onLines(lines.length)
    const whole = items.length < page
    if (whole || lines.length >= most) return { text: lines.join(''), lines: lines.length, whole }
  }
}

/** A moment as fields for times have it, in the zone of the browser; '' is no moment. */
export function toField(at: string | undefined): string {
  const ms = at ? Date.parse(at) : NaN
  if (Number.isNaN(ms)) return ''
  return new Date(ms - new Date(ms).getTimezoneOffset() * 60_000).toISOString().slice(0, 16)
}

/** What a field for times holds, as the address keeps it: the same moment in every zone. */
export function fromField(text: string): string | undefined {
  const ms = Date.parse(text)
  return Number.isNaN(ms) ? undefined : new Date(ms).toISOString()
}
