import { useQueryClient, type UseQueryResult } from '@tanstack/react-query'
import { useState, type ReactNode } from 'react'
import { Icon } from '@/design/icons'
import { Copy, ErrorState, Skeleton } from '@/design/parts'
import { t } from '@/words'

// What the panels of one's own page share.

/** A use case with its busy time and its refusal. */
export function useDo() {
  const client = useQueryClient()
  const [busy, setBusy] = useState(false)
  const [error, setError] = useState<unknown>(null)
  const run = async (what: () => Promise<unknown>) => {
    if (busy) return
    setBusy(true)
    setError(null)
    try {
      await what()
      await client.invalidateQueries({ queryKey: ['tenancy'] })
    } catch (err) {
      setError(err)
    } finally {
      setBusy(false)
    }
  }
  return { busy, run, shown: error !== null && <ErrorState error={error} /> }
}

export function Loaded<T>({ of: q, children }: { of: UseQueryResult<T>; children: (d: T) => ReactNode }) {
  if (q.isError && q.data === undefined) return <ErrorState error={q.error} retry={() => void q.refetch()} />
  if (q.data === undefined) return <Skeleton lines={2} />
  return <>{children(q.data)}</>
}

/** What is told once. */
export function Secret({ rows }: { rows: [string, string][] }) {
  return (
    <div className="note info">
      <Icon name="key" />
      <div className="stack tight grow">
        <strong>{t('profile.once')}</strong>
        {rows.map(([k, v]) => (
          <span key={k} className="row wrap">
            <span className="soft w-90">{k}</span>
            <code className="lines-kept">{v.length > 200 ? v.slice(0, 60) + '…' : v}</code>
            <Copy text={v} label={t('do.copy')} />
          </span>
        ))}
      </div>
    </div>
  )
}
