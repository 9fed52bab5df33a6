import { Button, Modal } from '@mantine/core'
import { useQuery } from '@tanstack/react-query'
import { useState } from 'react'
import { Icon } from '@/design/icons'
import { Cli, ErrorState, Skeleton, Why } from '@/design/parts'
import { t } from '@/words'
import { filesQuery, moveFile, type FolderDetail } from './queries'

const join = (dir: string, name: string) => (dir === '.' ? name : `${dir}/${name}`)

/** Asks where entries of a directory go. */
export function Move({
  open,
  onClose,
  of: f,
  from,
  names,
  onDone,
}: {
  open: boolean
  onClose: () => void
  of: FolderDetail
  from: string
  names: string[]
  onDone: () => void
}) {
  return (
    <Modal opened={open} onClose={onClose} title={t('file.move.title', { n: names.length })} size={520}>
      {open && <Inside of={f} from={from} names={names} onClose={onClose} onDone={onDone} />}
    </Modal>
  )
}

function Inside({
  of: f,
  from,
  names,
  onClose,
  onDone,
}: {
  of: FolderDetail
  from: string
  names: string[]
  onClose: () => void
  onDone: () => void
}) {
  const [at, setAt] = useState(from)
  const [busy, setBusy] = useState(false)
  const [error, setError] = useState<unknown>(null)
  const q = useQuery(filesQuery(f.id, at))
  const dirs = (q.data?.items ?? []).filter((e) => e.type === 'DIRECTORY' && !(at === from && names.includes(e.name)))
  const inside = names.some((n) => at === join(from, n) || at.startsWith(join(from, n) + '/'))
  const why = at === from ? t('file.move.same') : inside ? t('file.move.inside') : null
  const go = async () => {
    if (busy || why) return
    setBusy(true)
    setError(null)
    try {
      for (const n of names) await moveFile(f.id, join(from, n), join(at, n))
      onClose()
    } catch (err) {
      setError(err)
    } finally {
      setBusy(false)
      onDone()
    }
  }
  const up = at === '.' ? null : at.includes('/') ? at.slice(0, at.lastIndexOf('/')) : '.'
  return (
    <div className="stack">
      <span className="mono soft">{t('file.move.to', { path: at === '.' ? f.name : `${f.name}/${at}` })}</span>
      <div className="panel scroll-m min-h-120">
        {q.isError ? (
          <div className="pad-s">
            <ErrorState error={q.error} retry={() => void q.refetch()} />
          </div>
        ) : !q.data ? (
          <div className="pad-s">
            <Skeleton lines={3} />
          </div>
        ) : (
          <div className="lines">
            {up !== null && (
              <button type="button" className="copy row w-all" onClick={() => setAt(up)}>
                <Icon name="up" size={14} /> {t('file.up')}
              </button>
            )}
            {dirs.map((d) => (
              <button key={d.name} type="button" className="copy row w-all" onClick={() => setAt(join(at, d.name))}>
                <Icon name="folder" /> <span className="cut">{d.name}</span>
              </button>
            ))}
            {dirs.length === 0 && <div className="dim small">{t('file.move.nodirs')}</div>}
          </div>
        )}
      </div>
      {error !== null && <ErrorState error={error} />}
      <Cli line={`berth folder mv ${names.map((n) => `${f.name}:${join(from, n)}`).join(' ')} ${f.name}:${at === '.' ? '' : at}`} />
      <div className="row to-end">
        <Button onClick={onClose}>{t('do.cancel')}</Button>
        <Why reason={why}>
          <Button variant="filled" loading={busy} disabled={!!why} onClick={() => void go()}>
            {t('file.move.here')}
          </Button>
        </Why>
      </div>
    </div>
  )
}
