import { Button, Modal } from '@mantine/core'
import { useQuery, useQueryClient } from '@tanstack/react-query'
import { useBlocker } from '@tanstack/react-router'
import { useEffect, useMemo, useState } from 'react'
import { bytes } from '@/design/amounts'
import { Listing, type Column } from '@/design/DataTable'
import { Icon } from '@/design/icons'
import { Ago, Cli, EmptyState, ErrorState, Skeleton } from '@/design/parts'
import { clock } from '@/design/time'
import { t } from '@/words'
import { cellsOf, contentQuery, mostText, rowsOf, type Content } from './content'
import { filesQuery, type File as Entry, type FolderDetail } from './queries'
import { writeText } from './uploads'
import './file.css'

/** A file of a folder: what is in it, and for text an editor. */
export function FileView({
  of: f,
  path,
  onClose,
  onDownload,
}: {
  of: FolderDetail
  path: string
  onClose: () => void
  onDownload: () => void
}) {
  const dir = path.includes('/') ? path.slice(0, path.lastIndexOf('/')) : '.'
  const name = path.slice(path.lastIndexOf('/') + 1)
  const list = useQuery(filesQuery(f.id, dir))
  const entry = list.data?.items.find((e) => e.name === name)
  if (list.isError && !list.data) return <ErrorState error={list.error} retry={() => void list.refetch()} />
  if (!list.data) return <Skeleton lines={8} />
  return <File key={path} of={f} path={path} name={name} dir={dir} entry={entry} onClose={onClose} onDownload={onDownload} />
}

function File({
  of: f,
  path,
  name,
  dir,
  entry,
  onClose,
  onDownload,
}: {
  of: FolderDetail
  path: string
  name: string
  dir: string
  entry: Entry | undefined
  onClose: () => void
  onDownload: () => void
}) {
  const client = useQueryClient()
  // What is shown stays what was read first while somebody writes; a newer one is a conflict, not a surprise.
  const [base, setBase] = useState(entry)
  const [draft, setDraft] = useState<string | null>(null)
  const shown = draft === null ? entry : base
  const q = useQuery({ ...contentQuery(f.id, path, shown?.size ?? 0, shown?.modified ?? ''), enabled: !!shown })
  const [busy, setBusy] = useState(false)
  const [error, setError] = useState<unknown>(null)
  const [conflict, setConflict] = useState<Entry | null>(null)
  const [saved, setSaved] = useState(false)
  const c = q.data
  const dirty = draft !== null && c !== undefined && draft !== plain(c.text)
  const blocker = useBlocker({ shouldBlockFn: () => dirty, enableBeforeUnload: () => dirty, withResolver: true })
  const mayEdit =
    f.permissions.includes('write_content') && !!c && c.whole && c.kind !== 'image' && c.kind !== 'binary' && !entry?.symlink_target

  const write = async (as: string, target: string) => {
    await writeText(f.id, target, c?.crlf ? as.replace(/\n/g, '\r\n') : as)
    const after = await client.fetchQuery({ ...filesQuery(f.id, dir), staleTime: 0 })
    const now = after.items.find((e) => e.name === name)
    setBase(now)
    setDraft(null)
    setConflict(null)
    setSaved(true)
  }
  const doing = (what: () => Promise<void>) => {
    if (busy) return
    setBusy(true)
    setError(null)
    what()
      .catch(setError)
      .finally(() => setBusy(false))
  }
  const submit = () =>
    doing(async () => {
      if (draft === null) return
      const now = (await client.fetchQuery({ ...filesQuery(f.id, dir), staleTime: 0 })).items.find((e) => e.name === name)
      if (now && base && (now.modified !== base.modified || now.size !== base.size)) {
        setConflict(now)
        return
      }
      await write(draft, path)
    })
  if (!entry && draft === null)
    return (
      <EmptyState
        title={t('view.gone')}
        action={<Button onClick={onClose}>{t('do.back')}</Button>}
        cli={`berth folder ls ${f.name}${dir === '.' ? '' : ':' + dir}`}
      />
    )
  const other = besides(name)
  return (
    <section className="panel file">
      <header>
        <Icon name="file" />
        <h2 className="cut">{name}</h2>
        <span className="small dim grow">
          {entry ? (
            <>
              {bytes(entry.size)} · <Ago at={entry.modified} />
            </>
          ) : (
            t('view.gone')
          )}
          {dirty && <> · {t('view.unsaved')}</>}
          {saved && !dirty && draft === null && (
            <span className="good" role="status">
              {' '}
              · {t('view.saved')}
            </span>
          )}
        </span>
        {draft === null ? (
          <>
            {mayEdit && (
              <Button
                size="compact-sm"
                leftSection={<Icon name="edit" size={14} />}
                onClick={() => {
                  setBase(entry)
                  setSaved(false)
                  setDraft(plain(c.text))
                }}>
                {t('view.edit')}
              </Button>
            )}
            <Button size="compact-sm" onClick={onDownload} leftSection={<Icon name="download" size={14} />}>
              {t('do.download')}
            </Button>
          </>
        ) : (
          <>
            <Button
              size="compact-sm"
              onClick={() => {
                setDraft(null)
                setConflict(null)
              }}>
              {dirty ? t('view.discard') : t('do.cancel')}
            </Button>
            <Button size="compact-sm" variant="filled" loading={busy} disabled={!dirty} onClick={submit} aria-label={t('view.save')}>
              {t('view.save')}
            </Button>
          </>
        )}
        <button type="button" className="iconbtn" aria-label={t('view.close')} onClick={onClose}>
          <Icon name="close" size={14} />
        </button>
      </header>
      {error !== null && (
        <div className="pad-s">
          <ErrorState error={error} />
        </div>
      )}
      {conflict && draft !== null && (
        <div className="note apart" role="alert">
          <Icon name="warn" />
          <div className="stack tight grow">
            <strong>{t('edit.conflict', { name, when: clock(conflict.modified) })}</strong>
            <span>{t('edit.conflict.text')}</span>
            <div className="row wrap over-4">
              <Button size="compact-sm" loading={busy} onClick={() => doing(() => write(draft, path))}>
                {t('edit.mine')}
              </Button>
              <Button
                size="compact-sm"
                onClick={() => {
                  setBase(conflict)
                  setDraft(null)
                  setConflict(null)
                }}>
                {t('edit.theirs')}
              </Button>
              <Button size="compact-sm" loading={busy} onClick={() => doing(() => write(draft, dir === '.' ? other : `${dir}/${other}`))}>
                {t('edit.both', { name: other })}
              </Button>
            </div>
          </div>
        </div>
      )}
      {draft !== null && entry && (parseInt(entry.mode, 8) & 0o111) !== 0 && (
        <div className="note info apart">
          <Icon name="info" />
          <span>{t('edit.mode')}</span>
        </div>
      )}
      {draft !== null && !entry && (
        <div className="note apart" role="alert">
          <Icon name="warn" />
          <span>{t('view.gone.text')}</span>
        </div>
      )}
      {q.isError && !c ? (
        <div className="pad-m">
          <ErrorState error={q.error} retry={() => void q.refetch()} />
        </div>
      ) : !c ? (
        <div className="pad-m">
          <Skeleton lines={8} />
        </div>
      ) : draft !== null ? (
        <textarea
          className="editor"
          aria-label={t('edit.area', { name })}
          value={draft}
          spellCheck={false}
          autoFocus
          onChange={(e) => setDraft(e.currentTarget.value)}
          onKeyDown={(e) => {
            if ((e.metaKey || e.ctrlKey) && e.key.toLowerCase() === 's') {
              e.preventDefault()
              submit()
            }
          }}
        />
      ) : (
        <Shown of={c} name={name} size={entry?.size ?? 0} folder={f.name} path={path} />
      )}
      <Modal opened={blocker.status === 'blocked'} onClose={() => blocker.reset?.()} title={t('view.unsaved')}>
        <div className="row to-end">
          <Button onClick={() => blocker.reset?.()} data-autofocus>
            {t('do.back')}
          </Button>
          <Button variant="filled" color="red.8" onClick={() => blocker.proceed?.()}>
            {t('view.discard')}
          </Button>
        </div>
      </Modal>
    </section>
  )
}

/** Fields of pages know only one end of lines. */
const plain = (s: string) => s.replace(/\r\n/g, '\n')

/** A name beside another: "a.txt" becomes "a (mine).txt". */
export function besides(name: string): string {
  const at = name.lastIndexOf('.')
  return at > 0 ? `${name.slice(0, at)} (mine)${name.slice(at)}` : `${name} (mine)`
}

function Shown({ of: c, name, size, folder, path }: { of: Content; name: string; size: number; folder: string; path: string }) {
  if (c.kind === 'image' && c.image) return <Picture of={c.image} name={name} />
  if (c.kind === 'binary')
    return (
      <EmptyState
        title={!c.whole && size > mostText * 8 ? t('view.toolarge', { size: bytes(size) }) : t('view.binary')}
        text={t('view.binary.text')}
        cli={`berth cp ${folder}:${path} .`}
      />
    )
  return (
    <>
      {!c.whole && (
        <div className="note apart">
          <Icon name="info" />
          <span>{t('view.large', { size: bytes(size), first: bytes(mostText) })}</span>
        </div>
      )}
      {c.kind === 'table' ? (
        <Table text={c.text} />
      ) : c.kind === 'notebook' ? (
        <Notebook text={c.text} />
      ) : (
        <pre className="text" tabIndex={0}>
          {c.text}
        </pre>
      )}
    </>
  )
}

function Picture({ of, name }: { of: Blob; name: string }) {
  const [url, setUrl] = useState('')
  useEffect(() => {
    const made = URL.createObjectURL(of)
    setUrl(made)
    return () => URL.revokeObjectURL(made)
  }, [of])
  return <div className="picture">{url && <img src={url} alt={name} />}</div>
}

function Table({ text }: { text: string }) {
  const { rows, cut } = useMemo(() => rowsOf(text), [text])
  const head = rows[0] ?? []
  const wide = Math.min(
    64,
    rows.slice(0, 200).reduce((n, r) => Math.max(n, r.length), 0),
  )
  const body = useMemo(() => rows.slice(1).map((cells, i) => ({ i, cells })), [rows])
  const columns: Column<(typeof body)[number]>[] = Array.from({ length: wide }, (_, j) => ({
    id: String(j),
    title: head[j] ?? '',
    width: 'minmax(110px, 1fr)',
    num: body.slice(0, 50).every((r) => r.cells[j] === undefined || r.cells[j] === '' || !Number.isNaN(Number(r.cells[j]))),
    cell: (r) => <span title={r.cells[j]}>{r.cells[j]}</span>,
  }))
  return (
    <Listing
      label={t('col.name')}
      columns={columns}
      rows={body}
      rowKey={(r) => String(r.i)}
      empty={<pre className="text">{text}</pre>}
      {...(cut ? { foot: <span>{t('view.rows', { n: body.length })}</span> } : {})}
    />
  )
}

function Notebook({ text }: { text: string }) {
  const cells = useMemo(() => cellsOf(text), [text])
  if (!cells)
    return (
      <>
        <p className="small dim pad-line">{t('view.nbbad')}</p>
        <pre className="text" tabIndex={0}>
          {text}
        </pre>
      </>
    )
  return (
    <div className="notebook">
      {cells.map((c, i) => (
        <div key={i} className={`cell ${c.kind === 'code' ? 'code' : 'words'}`}>
          {c.kind === 'code' && <span className="small dim">{`${t('view.in')} [${c.count ?? ' '}]`}</span>}
          <pre>{c.text}</pre>
          {c.outputs.map((o, j) => (
            <div key={j} className="output">
              {o.image ? <img src={o.image} alt={`${t('view.out')} ${i + 1}`} /> : o.text ? <pre>{o.text}</pre> : null}
              {o.page && !o.image && !o.text && <p className="small dim">{t('view.nbhtml')}</p>}
            </div>
          ))}
        </div>
      ))}
      <div className="pad-s">
        <Cli line="berth notebook" />
      </div>
    </div>
  )
}
