import { Button, Switch, Textarea } from '@mantine/core'
import { useQuery, useQueryClient } from '@tanstack/react-query'
import { useEffect, useState } from 'react'
import { ConfirmAction, ErrorState, Facts, PageHead, Panel, Skeleton, StateBadge, toast, useTitle } from '@/design/parts'
import { t } from '@/words'
import { announce, announcementQuery, clusterStatusQuery, setClusterStatus } from './queries'

export function SettingsPage() {
  useTitle(t('nav.settings'))
  return (
    <div className="page form">
      <PageHead title={t('nav.settings')} />
      <Announcement />
      <Freeze />
    </div>
  )
}

function Announcement() {
  const client = useQueryClient()
  const q = useQuery(announcementQuery)
  const [text, setText] = useState('')
  const [on, setOn] = useState(false)
  const [busy, setBusy] = useState(false)
  const [error, setError] = useState<unknown>(null)
  useEffect(() => {
    if (q.data) {
      setText(q.data.message)
      setOn(q.data.enabled)
    }
  }, [q.data])
  const save = () => {
    setBusy(true)
    setError(null)
    announce(on, text)
      .then(() => {
        toast(on ? t('set.announced') : t('set.silent'))
        return client.invalidateQueries({ queryKey: ['operation'] })
      })
      .catch(setError)
      .finally(() => setBusy(false))
  }
  return (
    <Panel title={t('set.announcement')}>
      {q.isError ? (
        <ErrorState error={q.error} retry={() => void q.refetch()} />
      ) : !q.data ? (
        <Skeleton lines={3} />
      ) : (
        <form
          className="stack"
          onSubmit={(e) => {
            e.preventDefault()
            save()
          }}>
          <Textarea
            label={t('set.message')}
            description={t('set.message.text')}
            value={text}
            onChange={(e) => setText(e.currentTarget.value)}
            autosize
            minRows={2}
          />
          <Switch label={t('set.show')} checked={on} onChange={(e) => setOn(e.currentTarget.checked)} />
          {error !== null && <ErrorState error={error} />}
          <Button className="self-start" type="submit" variant="filled" loading={busy} disabled={on && !text.trim()}>
            {t('do.save')}
          </Button>
        </form>
      )}
    </Panel>
  )
}

function Freeze() {
  const q = useQuery(clusterStatusQuery)
  const [ask, setAsk] = useState(false)
  const frozen = q.data?.status === 'frozen'
  return (
    <Panel title={t('set.cluster')}>
      {q.isError ? (
        <ErrorState error={q.error} retry={() => void q.refetch()} />
      ) : !q.data ? (
        <Skeleton lines={2} />
      ) : (
        <div className="stack">
          <Facts
            of={[
              [t('col.status'), <StateBadge key="s" status={frozen ? 'CORDONED' : 'RUNNING'} />],
              [t('set.live'), q.data.active_sessions],
              [t('set.managers'), q.data.nodes.map((n) => `${n.id} (${n.version})`).join(', ')],
            ]}
          />
          <p className="soft small">{t('set.freeze.text')}</p>
          <Button className="self-start" onClick={() => setAsk(true)}>
            {frozen ? t('set.thaw') : t('set.freeze')}
          </Button>
        </div>
      )}
      <ConfirmAction
        open={ask}
        onClose={() => setAsk(false)}
        title={frozen ? t('set.thaw') : t('set.freeze')}
        verb={frozen ? t('set.thaw') : t('set.freeze')}
        doing={t('do.save')}
        danger={!frozen}
        onDo={() => setClusterStatus(frozen ? 'running' : 'frozen').then(() => q.refetch())}>
        {t('set.freeze.text')}
      </ConfirmAction>
    </Panel>
  )
}
