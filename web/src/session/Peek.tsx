import { Button } from '@mantine/core'
import { useQuery } from '@tanstack/react-query'
import { Link } from '@tanstack/react-router'
import { AppButton } from '@/app/AppButton'
import { forBrowser } from '@/app/queries'
import { slotLine } from '@/design/amounts'
import { Icon } from '@/design/icons'
import { Ago, Cli, ErrorState, Facts, Skeleton, StateBadge } from '@/design/parts'
import { isOver } from '@/design/state'
import { span } from '@/design/time'
import { t, tAny } from '@/words'
import { sessionQuery } from './queries'
import { stepsOf } from './timeline'

/** A session beside the table, without leaving it. */
export function Peek({ id, onClose }: { id: string; onClose: () => void }) {
  const q = useQuery(sessionQuery(id))
  const s = q.data
  return (
    <aside className="panel peek" aria-label={t('peek.label', { name: s?.name ?? '' })}>
      <header>
        <h2 className="grow cut">{s?.name ?? ''}</h2>
        <Link to="/sessions/$id" params={{ id }} className="small">
          {t('peek.open')}
        </Link>
        <button type="button" className="copy" aria-label={t('do.close')} onClick={onClose}>
          <Icon name="close" size={14} />
        </button>
      </header>
      <div className="body stack">
        {q.isError && !s ? (
          <ErrorState error={q.error} retry={() => void q.refetch()} />
        ) : q.isPending ? (
          <Skeleton lines={6} />
        ) : !s ? (
          <p>{t('session.gone')}</p>
        ) : (
          <>
            <div className="row wrap">
              <StateBadge status={s.status} result={s.result} />
              <span className="small dim">
                <Ago at={isOver(s.status) ? s.terminated_at : s.created_at} />
              </span>
            </div>
            {s.status !== 'RUNNING' && s.why && <p className="soft">{tAny(`ended.${s.why}`, s.why)}</p>}
            {s.explanation?.remedies?.map((r) => (
              <p key={r} className="small soft">
                {t('new.remedy', { r })}
              </p>
            ))}
            {s.status === 'RUNNING' && (
              <div className="row wrap">
                {s.apps.filter(forBrowser).map((a) => (
                  <AppButton key={a.name} session={s.id} app={a.name} />
                ))}
              </div>
            )}
            <Facts
              of={[
                [t('col.image'), s.image],
                [t('col.resources'), slotLine(s.slots)],
                [t('col.owner'), s.user_email],
                [t('about.project'), s.group_name],
                [t('about.group'), s.scaling_group],
                [t('about.agents'), [...new Set(s.kernels.map((k) => k.agent).filter(Boolean))].join(', ') || '–'],
                ...stepsOf(s.history, Date.now()).map((p): [React.ReactNode, React.ReactNode] => [
                  tAny(`status.${p.status}`, p.status),
                  p.ms === null ? '' : span(p.ms),
                ]),
              ]}
            />
            <Cli line={s.status === 'PENDING' ? `berth session why ${s.name}` : `berth session info ${s.name}`} />
            <Button component={Link} {...({ to: '/sessions/$id', params: { id } } as object)}>
              {t('peek.open')}
            </Button>
          </>
        )}
      </div>
    </aside>
  )
}
