import { Button } from '@mantine/core'
import { useQuery, useQueryClient } from '@tanstack/react-query'
import { useRef, useState } from 'react'
import { bytes } from '@/design/amounts'
import { Listing, type Column } from '@/design/DataTable'
import { Icon } from '@/design/icons'
import { Ago, EmptyState, ErrorState, toast } from '@/design/parts'
import { save } from '@/folder/content'
import { droppedFiles, type Dropped } from '@/folder/uploads'
import { t } from '@/words'
import { sendFiles, sessionFile, sessionFilesQuery, sessionInfoQuery, sessionTarAddress, type SessionFile } from './queries'

/** Larger files come as the browser's own download, in a tar. */
const inPage = 64 << 20
const home = '/home/work'

const isDir = (f: SessionFile) => f.mode.startsWith('d')

/** The files of a running session. */
export function SessionFiles({ id, name, path, onPath }: { id: string; name: string; path: string; onPath: (p: string) => void }) {
  const client = useQueryClient()
  const q = useQuery(sessionFilesQuery(id, path))
  const mounts = useQuery(sessionInfoQuery(id)).data?.vfolder_mounts ?? []
  const [error, setError] = useState<unknown>(null)
  const [busy, setBusy] = useState(false)
  const pick = useRef<HTMLInputElement>(null)
  const full = (n: string) => (path === '.' ? n : `${path}/${n}`)
  const parts = path === '.' ? [] : path.split('/')
  const kept = (n: string) => {
    const at = `${home}/${full(n)}`
    return mounts.some((m) => at === m.target || at.startsWith(m.target + '/'))
  }
  const send = (list: Dropped[]) => {
    if (!list.length || busy) return
    setBusy(true)
    setError(null)
    sendFiles(
      id,
      list.map((d) => ({ path: full(d.path), file: d.file })),
    )
      .then(() => toast(t('sfile.sent', { n: list.length, where: path === '.' ? home : `${home}/${path}` })), setError)
      .finally(() => {
        setBusy(false)
        void client.invalidateQueries({ queryKey: ['session', 'files', id] })
      })
  }
  const open = (f: SessionFile) => {
    if (isDir(f)) return onPath(full(f.filename))
    setError(null)
    if (f.size > inPage) return save(sessionTarAddress(id, full(f.filename)), `${f.filename}.tar`)
    sessionFile(id, full(f.filename)).then((b) => {
      if (b) save(b, f.filename)
      else save(sessionTarAddress(id, full(f.filename)), `${f.filename}.tar`)
    }, setError)
  }
  const columns: Column<SessionFile>[] = [
    {
      id: 'name',
      title: t('col.name'),
      width: 'minmax(180px, 1fr)',
      cell: (f) => (
        <button type="button" className="copy ink pad-0" onClick={() => open(f)}>
          <Icon name={isDir(f) ? 'folder' : 'file'} />
          <span>{f.filename}</span>
        </button>
      ),
    },
    {
      id: 'kept',
      title: '',
      width: '130px',
      wide: true,
      cell: (f) => <span className="dim">{kept(f.filename) ? t('sfile.mount') : t('sfile.lost')}</span>,
    },
    { id: 'size', title: t('col.size'), width: '100px', num: true, cell: (f) => (isDir(f) ? '' : bytes(f.size)) },
    {
      id: 'modified',
      title: t('file.modified'),
      width: '120px',
      wide: true,
      cell: (f) => <Ago at={f.mtime ? new Date(f.mtime * 1000).toISOString() : null} />,
    },
  ]
  return (
    <div
      className="stack pad-s"
      onDragOver={(e) => {
        if (e.dataTransfer.types.includes('Files')) e.preventDefault()
      }}
      onDrop={(e) => {
        e.preventDefault()
        void droppedFiles(e.dataTransfer).then(send, setError)
      }}>
      <div className="row wrap">
        <nav className="row wrap grow gap-4 text-m" aria-label={t('file.path')}>
          <button type="button" className="copy" onClick={() => onPath('.')}>
            {t('sfile.home')}
          </button>
          {parts.map((p, i) => (
            <span key={i} className="row gap-4">
              <span className="dim">/</span>
              <button type="button" className="copy" onClick={() => onPath(parts.slice(0, i + 1).join('/'))}>
                {p}
              </button>
            </span>
          ))}
        </nav>
        <Button size="compact-sm" loading={busy} onClick={() => pick.current?.click()} leftSection={<Icon name="upload" size={14} />}>
          {t('upload.files')}
        </Button>
        {parts.length > 0 && (
          <Button
            size="compact-sm"
            onClick={() => save(sessionTarAddress(id, path), `${parts[parts.length - 1]}.tar`)}
            leftSection={<Icon name="download" size={14} />}>
            {t('do.download')}
          </Button>
        )}
      </div>
      <input
        ref={pick}
        type="file"
        multiple
        hidden
        data-testid="session-upload"
        onChange={(e) => {
          send([...(e.currentTarget.files ?? [])].map((file) => ({ path: file.name, file })))
          e.currentTarget.value = ''
        }}
      />
      {error !== null && <ErrorState error={error} />}
      <div className="panel">
        <Listing
          label={t('tab.files')}
          columns={columns}
          rows={q.data && [...q.data.files].sort((a, b) => Number(isDir(b)) - Number(isDir(a)) || a.filename.localeCompare(b.filename))}
          rowKey={(f) => f.filename}
          error={q.error}
          retry={() => void q.refetch()}
          onOpen={open}
          empty={<EmptyState title={t('sfile.none')} text={t('sfile.text')} cli={`berth session upload ${name} FILE`} />}
        />
      </div>
      <p className="small dim">{t('sfile.text')}</p>
    </div>
  )
}
