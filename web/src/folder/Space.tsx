import { useQueries, useQuery } from '@tanstack/react-query'
import { Meter } from '@/design/parts'
import { t } from '@/words'
import { quotaQuery, type Folder, type Quota } from './queries'

function Bar({ of: q, whose }: { of: Quota; whose: string }) {
  return <Meter slot="mem" used={q.used_bytes} of={q.limit_bytes} label={t('quota.of', { host: q.host, whose })} />
}

/** What of the space of one's own folders is used, by volume and owner. Where nothing bounds it, nothing is shown. */
export function Spaces({ of }: { of: Folder[] }) {
  const heads = new Map<string, Folder>()
  for (const f of of) {
    const owner = f.ownership_type === 'group' ? (f.group_name ?? '') : f.is_owner ? t('quota.mine') : ''
    if (owner && f.status === 'ready' && !heads.has(`${f.host}\n${owner}`)) heads.set(`${f.host}\n${owner}`, f)
  }
  const all = [...heads].slice(0, 6)
  const got = useQueries({ queries: all.map(([, f]) => quotaQuery(f.id)) })
  const bounded = all.map(([k], i) => ({ whose: k.split('\n')[1]!, q: got[i]!.data })).filter((x) => x.q?.limit_bytes)
  if (bounded.length === 0) return null
  return (
    <div className="grid2" role="group" aria-label={t('quota.title')}>
      {bounded.map((x) => (
        <Bar key={x.whose + x.q!.host} of={x.q!} whose={x.whose} />
      ))}
    </div>
  )
}

/** The same for the scope of one folder. */
export function Space({ of: f }: { of: Folder }) {
  // What somebody else's folders use is not ours to see.
  const q = useQuery({ ...quotaQuery(f.id), enabled: f.is_owner || f.ownership_type === 'group' }).data
  if (!q?.limit_bytes) return null
  return (
    <div className="max-320">
      <Bar of={q} whose={f.ownership_type === 'group' ? (f.group_name ?? '') : f.is_owner ? t('quota.mine') : (f.user_email ?? '')} />
    </div>
  )
}
