import { Button, Modal, TextInput } from '@mantine/core'
import { useQueryClient } from '@tanstack/react-query'
import { useNavigate } from '@tanstack/react-router'
import { useState, type FormEvent } from 'react'
import { Cli, ErrorState, toast } from '@/design/parts'
import { followTask } from '@/operation/task'
import { t } from '@/words'
import { commitQuery, commitSession } from './queries'

/** Asks under which tag the container of a session is saved, and tells when that is done, wherever the person is then. */
export function Commit({ open, onClose, id, name }: { open: boolean; onClose: () => void; id: string; name: string }) {
  const client = useQueryClient()
  const go = useNavigate()
  const [tag, setTag] = useState('')
  const [busy, setBusy] = useState(false)
  const [error, setError] = useState<unknown>(null)
  const submit = (e: FormEvent) => {
    e.preventDefault()
    if (busy) return
    setBusy(true)
    setError(null)
    commitSession(id, tag.trim())
      .then((r) => {
        onClose()
        void client.invalidateQueries({ queryKey: commitQuery(id).queryKey })
        followTask(r.bgtask_id)
          .then(
            () => toast(t('commit.done', { name }), { label: t('commit.see'), run: () => void go({ to: '/images' }) }, 15_000),
            (err: Error) => toast(err.message, undefined, 20_000),
          )
          .finally(() => {
            void client.invalidateQueries({ queryKey: ['image'] })
            void client.invalidateQueries({ queryKey: commitQuery(id).queryKey })
          })
      }, setError)
      .finally(() => setBusy(false))
  }
  return (
    <Modal opened={open} onClose={onClose} title={t('commit.do')}>
      <form className="stack" onSubmit={submit}>
        <p className="soft text-m">{t('commit.text')}</p>
        <TextInput
          label={t('commit.name')}
          description={t('commit.name.text')}
          value={tag}
          onChange={(e) => setTag(e.currentTarget.value)}
          pattern="[A-Za-z0-9_][A-Za-z0-9_.\-]{0,127}"
          data-autofocus
        />
        {error !== null && <ErrorState error={error} />}
        <Cli line={`berth session commit ${name}${tag ? ` --filename ${tag}` : ''}`} />
        <div className="row to-end">
          <Button onClick={onClose}>{t('do.cancel')}</Button>
          <Button type="submit" variant="filled" loading={busy}>
            {t('commit.do')}
          </Button>
        </div>
      </form>
    </Modal>
  )
}
