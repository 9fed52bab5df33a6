import { useQuery } from '@tanstack/react-query'
import { amount } from '@/design/amounts'
import { Panel } from '@/design/parts'
import { t } from '@/words'
import { historyQuery, samplesOf } from './history'
import type { SessionDetail } from './queries'
import { Use } from './Use'

/** The panel of what a session uses, with what it used before the page was opened; of one that has ended, what it used at all. */
export function UseOf({ of: s, at, over }: { of: SessionDetail; at: number; over: boolean }) {
  const past = useQuery(historyQuery(s.id, over, s.created_at, s.terminated_at)).data
  const history = past ? samplesOf(past, amount(s.slots['cpu'])) : []
  if (over && !history.length) return null
  return (
    <Panel title={t('use.title')}>
      <Use kernels={over ? [] : s.kernels} at={at} limits={s.slots} history={history} />
    </Panel>
  )
}
