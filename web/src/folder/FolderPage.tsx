import { Button, Menu, Modal, TextInput } from '@mantine/core'
import { useQuery, useQueryClient } from '@tanstack/react-query'
import { getRouteApi, Link, useNavigate } from '@tanstack/react-router'
import { lazy, Suspense, useRef, useState, type FormEvent } from 'react'
import { bytes } from '@/design/amounts'
import { Listing, type Column } from '@/design/DataTable'
import { CopyAs } from '@/design/CopyAs'
import { Icon } from '@/design/icons'
import { Ago, Bone, ConfirmAction, EmptyState, ErrorState, Id, PageHead, Skeleton, toast, useTitle } from '@/design/parts'
import { t, tAny } from '@/words'
import {
  deleteFiles,
  downloadAddress,
  filesQuery,
  folderQuery,
  leaveFolder,
  makeDirectory,
  renameFile,
  renameFolder,
  trashFolder,
  type File as Entry,
  type FolderDetail,
} from './queries'
import { save } from './content'
import { Move } from './Move'
import { ShareDialog } from './Share'
import { Space } from './Space'
import { droppedFiles, upload } from './uploads'

const FileView = lazy(() => import('./FileView').then((m) => ({ default: m.FileView })))

const route = getRouteApi('/data/$folder')

export function FolderPage() {
  const { folder } = route.useParams()
  const q = useQuery(folderQuery(folder))
  useTitle(q.data?.name ?? t('nav.data'))
  if (q.isError && !q.data)
    return (
      <div className="page">
        <ErrorState error={q.error} retry={() => void q.refetch()} />
        <Button className="self-start" component={Link} to="/data">
          {t('folder.all')}
        </Button>
      </div>
    )
  if (!q.data)
    return (
      <div className="page">
        <Bone w={240} h={28} />
        <div className="panel pad-m">
          <Skeleton lines={8} />
        </div>
      </div>
    )
  return <Browser of={q.data} />
}

const dirFirst = (a: Entry, b: Entry) =>
  Number(b.type === 'DIRECTORY') - Number(a.type === 'DIRECTORY') || a.name.localeCompare(b.name, undefined, { numeric: true })

function Browser({ of: f }: { of: FolderDetail }) {
  const search = route.useSearch()
  const go = useNavigate({ from: '/data/$folder' })
  const client = useQueryClient()
  const path = search.path ?? '.'
  const q = useQuery(filesQuery(f.id, path))
  const [selected, setSelected] = useState<Set<string>>(new Set())
  const [over, setOver] = useState(false)
  const [ask, setAsk] = useState<'' | 'dir' | 'move' | 'rename' | 'delete' | 'name' | 'trash' | 'share' | 'leave'>('')
  const [error, setError] = useState<unknown>(null)
  const pick = useRef<HTMLInputElement>(null)
  const pickDir = useRef<HTMLInputElement>(null)
  const can = (p: string) => f.permissions.includes(p)
  const full = (name: string) => (path === '.' ? name : `${path}/${name}`)
  const look = () => client.invalidateQueries({ queryKey: ['folder', 'files', f.id] })
  const open = (dir: string) => {
    setSelected(new Set())
    void go({ search: dir === '.' ? {} : { path: dir } })
  }
  const send = (list: { path: string; file: File }[]) => {
    setError(null)
    if (list.length) upload(f.id, f.name, path, list).then(look, setError)
  }
  const fetchAway = (paths: string[], archive: boolean) => {
    setError(null)
    downloadAddress(f.id, paths, archive).then((url) => save(url, ''), setError)
  }
  const view = (file: string) => void go({ search: (old) => ({ ...old, file }) })
  const download = (names: string[]) => {
    setError(null)
    const one = names.length === 1 ? q.data?.items.find((e) => e.name === names[0]) : undefined
    fetchAway(names.map(full), !one || one.type === 'DIRECTORY')
  }
  const parts = path === '.' ? [] : path.split('/')
  const columns: Column<Entry>[] = [
    {
      id: 'name',
      title: t('col.name'),
      width: 'minmax(200px, 1fr)',
      cell: (e) => (
        <button type="button" className="copy ink pad-0" onClick={() => (e.type === 'DIRECTORY' ? open(full(e.name)) : view(e.name))}>
          <Icon name={e.type === 'DIRECTORY' ? 'folder' : 'file'} />
          <span>{e.name}</span>
          {e.symlink_target && <span className="dim">→ {e.symlink_target}</span>}
        </button>
      ),
    },
    {
      id: 'size',
      title: t('col.size'),
      width: '110px',
      num: true,
      cell: (e) => (e.type === 'DIRECTORY' ? <span className="dim">–</span> : bytes(e.size)),
    },
    { id: 'mode', title: t('file.mode'), width: '90px', wide: true, cell: (e) => <code className="dim">{e.mode}</code> },
    { id: 'modified', title: t('file.modified'), width: '140px', wide: true, cell: (e) => <Ago at={e.modified} /> },
  ]
  const chosen = [...selected]
  return (
    <div
      className={`page${over ? ' dropping' : ''}`}
      onDragOver={(e) => {
        if (can('write_content') && e.dataTransfer.types.includes('Files')) {
          e.preventDefault()
          setOver(true)
        }
      }}
      onDragLeave={(e) => {
        if (e.currentTarget === e.target) setOver(false)
      }}
      onDrop={(e) => {
        setOver(false)
        if (!can('write_content')) return
        e.preventDefault()
        void droppedFiles(e.dataTransfer).then(send, setError)
      }}>
      <PageHead
        title={
          <span className="row">
            <Icon name="folder" size={20} />
            {f.name}
          </span>
        }
        sub={
          <>
            <span>
              {f.ownership_type === 'group'
                ? t('folder.ofproject', { name: f.group_name ?? '' })
                : f.is_owner
                  ? t('folder.mine')
                  : f.user_email}
            </span>
            <span>{tAny(`perm.${f.permission}`, f.permission)}</span>
            <span title={f.host}>
              {f.used_bytes !== null
                ? t('folder.holds', { size: (f.complete === false ? '≥ ' : '') + bytes(f.used_bytes), n: f.num_files ?? 0 })
                : f.host}
            </span>
            <Id id={f.id} />
          </>
        }>
        {can('write_content') && (
          <Menu position="bottom-end">
            <Menu.Target>
              <Button variant="filled" leftSection={<Icon name="upload" />}>
                {t('upload.do')}
              </Button>
            </Menu.Target>
            <Menu.Dropdown>
              <Menu.Item onClick={() => pick.current?.click()}>{t('upload.files')}</Menu.Item>
              <Menu.Item onClick={() => pickDir.current?.click()}>{t('upload.dir')}</Menu.Item>
            </Menu.Dropdown>
          </Menu>
        )}
        {can('mount_ro') && (
          <Button onClick={() => void go({ to: '/sessions/new', search: { folder: f.id } })} leftSection={<Icon name="play" size={14} />}>
            {t('folder.use')}
          </Button>
        )}
        {can('assign_permission_to_others') && (
          <Button onClick={() => setAsk('share')} leftSection={<Icon name="share" />}>
            {t('folder.share')}
          </Button>
        )}
        <Menu position="bottom-end">
          <Menu.Target>
            <button type="button" className="iconbtn" aria-label={t('do.more')}>
              <Icon name="more" />
            </button>
          </Menu.Target>
          <Menu.Dropdown>
            <Menu.Item onClick={() => download(q.data?.items.map((e) => e.name) ?? [])} disabled={!q.data?.items.length}>
              {t('folder.zip')}
            </Menu.Item>
            <CopyAs
              cli={`berth cp -r ${f.name}: .`}
              api={{ method: 'GET', path: `/folders/${f.id}/files?path=${encodeURIComponent(path)}` }}
            />
            {can('update_attribute') && <Menu.Item onClick={() => setAsk('name')}>{t('do.rename')}</Menu.Item>}
            {!f.is_owner && f.ownership_type === 'user' && <Menu.Item onClick={() => setAsk('leave')}>{t('folder.leave')}</Menu.Item>}
            {can('delete_vfolder') && (
              <Menu.Item color="var(--b-failed)" onClick={() => setAsk('trash')}>
                {t('folder.totrash', { n: 1 })}
              </Menu.Item>
            )}
          </Menu.Dropdown>
        </Menu>
      </PageHead>
      <input
        ref={pick}
        type="file"
        multiple
        hidden
        data-testid="upload-files"
        onChange={(e) => {
          send([...(e.currentTarget.files ?? [])].map((file) => ({ path: file.name, file })))
          e.currentTarget.value = ''
        }}
      />
      <input
        ref={pickDir}
        type="file"
        multiple
        hidden
        {...{ webkitdirectory: '' }}
        onChange={(e) => {
          send([...(e.currentTarget.files ?? [])].map((file) => ({ path: file.webkitRelativePath || file.name, file })))
          e.currentTarget.value = ''
        }}
      />
      <div className="row wrap">
        <nav className="row wrap grow gap-4 text-m" aria-label={t('file.path')}>
          <button type="button" className="copy" onClick={() => open('.')} aria-current={parts.length === 0 ? 'page' : undefined}>
            {f.name}
          </button>
          {parts.map((p, i) => (
            <span key={i} className="row gap-4">
              <span className="dim">/</span>
              <button
                type="button"
                className="copy"
                onClick={() => open(parts.slice(0, i + 1).join('/'))}
                aria-current={i === parts.length - 1 && !search.file ? 'page' : undefined}>
                {p}
              </button>
            </span>
          ))}
          {search.file && (
            <span className="row gap-4" aria-current="page">
              <span className="dim">/</span>
              <span>{search.file}</span>
            </span>
          )}
        </nav>
        <Space of={f} />
        {can('write_content') && !search.file && (
          <Button size="compact-sm" onClick={() => setAsk('dir')} leftSection={<Icon name="plus" size={12} />}>
            {t('file.newdir')}
          </Button>
        )}
      </div>
      {error !== null && <ErrorState error={error} />}
      {search.file && (
        <Suspense fallback={<Skeleton lines={8} />}>
          <FileView of={f} path={full(search.file)} onClose={() => open(path)} onDownload={() => fetchAway([full(search.file!)], false)} />
        </Suspense>
      )}
      {!search.file && q.data?.truncated && (
        <div className="note">
          <Icon name="info" />
          <span>{t('file.truncated', { n: q.data.items.length })}</span>
        </div>
      )}
      <div className="panel" hidden={!!search.file}>
        <Listing
          label={t('file.list')}
          columns={columns}
          rows={q.data ? [...q.data.items].sort(dirFirst) : undefined}
          rowKey={(e) => e.name}
          error={q.error}
          retry={() => void q.refetch()}
          onOpen={(e) => {
            if (e.type === 'DIRECTORY') open(full(e.name))
            else view(e.name)
          }}
          selected={selected}
          onSelect={setSelected}
          bulk={
            <>
              <span>{t('table.selected', { n: selected.size })}</span>
              {can('read_content') && (
                <Button size="compact-sm" onClick={() => download(chosen)} leftSection={<Icon name="download" size={14} />}>
                  {t('do.download')}
                </Button>
              )}
              {can('write_content') && (
                <Button size="compact-sm" onClick={() => setAsk('move')}>
                  {t('file.move')}
                </Button>
              )}
              {chosen.length === 1 && can('write_content') && (
                <Button size="compact-sm" onClick={() => setAsk('rename')}>
                  {t('do.rename')}
                </Button>
              )}
              {can('delete_content') && (
                <Button size="compact-sm" variant="filled" color="red.8" onClick={() => setAsk('delete')}>
                  {t('file.delete', { n: chosen.length })}
                </Button>
              )}
            </>
          }
          empty={
            <EmptyState
              title={t('file.none')}
              text={can('write_content') ? t('file.none.text') : ''}
              cli={`berth cp -r . ${f.name}:${path === '.' ? '' : path}`}
              action={
                can('write_content') ? (
                  <Button variant="filled" onClick={() => pick.current?.click()}>
                    {t('upload.files')}
                  </Button>
                ) : undefined
              }
            />
          }
        />
      </div>
      <Ask
        open={ask === 'dir'}
        onClose={() => setAsk('')}
        title={t('file.newdir')}
        label={t('col.name')}
        verb={t('file.newdir.do')}
        start=""
        onDo={async (n) => {
          await makeDirectory(f.id, full(n))
          await look()
        }}
      />
      <Move
        open={ask === 'move'}
        onClose={() => setAsk('')}
        of={f}
        from={path}
        names={chosen}
        onDone={() => {
          setSelected(new Set())
          void look()
        }}
      />
      <Ask
        open={ask === 'rename'}
        onClose={() => setAsk('')}
        title={t('do.rename.what', { what: chosen[0] ?? '' })}
        label={t('col.name')}
        verb={t('do.rename')}
        start={chosen[0] ?? ''}
        onDo={async (n) => {
          await renameFile(f.id, full(chosen[0]!), n)
          setSelected(new Set())
          await look()
        }}
      />
      <Ask
        open={ask === 'name'}
        onClose={() => setAsk('')}
        title={t('do.rename.what', { what: f.name })}
        label={t('col.name')}
        verb={t('do.rename')}
        start={f.name}
        onDo={async (n) => {
          await renameFolder(f.id, n)
          await client.invalidateQueries({ queryKey: ['folder'] })
        }}
      />
      <ConfirmAction
        open={ask === 'delete'}
        onClose={() => setAsk('')}
        title={t('file.delete', { n: chosen.length })}
        verb={t('file.delete', { n: chosen.length })}
        doing={t('do.deleting')}
        onDo={async () => {
          await deleteFiles(f.id, chosen.map(full))
          setSelected(new Set())
          await look()
        }}>
        {t('file.delete.loses', { names: chosen.slice(0, 12).join(', ') })}
      </ConfirmAction>
      <ConfirmAction
        open={ask === 'trash'}
        onClose={() => setAsk('')}
        title={t('folder.totrash', { n: 1 })}
        verb={t('folder.totrash', { n: 1 })}
        doing={t('do.deleting')}
        onDo={async () => {
          await trashFolder(f.id)
          await client.invalidateQueries({ queryKey: ['folder', 'list'] })
          toast(t('folder.trashed', { n: 1 }))
          await go({ to: '/data' })
        }}>
        {t('folder.trash.text')}
      </ConfirmAction>
      <ConfirmAction
        open={ask === 'leave'}
        onClose={() => setAsk('')}
        title={t('folder.leave')}
        verb={t('folder.leave')}
        doing={t('do.deleting')}
        onDo={async () => {
          await leaveFolder(f.id)
          await client.invalidateQueries({ queryKey: ['folder', 'list'] })
          await go({ to: '/data' })
        }}>
        {t('folder.leave.text', { name: f.name })}
      </ConfirmAction>
      <ShareDialog open={ask === 'share'} onClose={() => setAsk('')} of={f} />
    </div>
  )
}

/** One question with one field. */
function Ask({
  open,
  onClose,
  title,
  label,
  verb,
  start,
  onDo,
}: {
  open: boolean
  onClose: () => void
  title: string
  label: string
  verb: string
  start: string
  onDo: (v: string) => Promise<void>
}) {
  return (
    <Modal opened={open} onClose={onClose} title={title}>
      {open && <AskForm key={start} onClose={onClose} label={label} verb={verb} start={start} onDo={onDo} />}
    </Modal>
  )
}

function AskForm({
  onClose,
  label,
  verb,
  start,
  onDo,
}: {
  onClose: () => void
  label: string
  verb: string
  start: string
  onDo: (v: string) => Promise<void>
}) {
  const [value, setValue] = useState(start)
  const [busy, setBusy] = useState(false)
  const [error, setError] = useState<unknown>(null)
  const submit = (e: FormEvent) => {
    e.preventDefault()
    if (busy) return
    setBusy(true)
    setError(null)
    onDo(value.trim())
      .then(onClose, setError)
      .finally(() => setBusy(false))
  }
  return (
    <form className="stack" onSubmit={submit}>
      <TextInput label={label} value={value} onChange={(e) => setValue(e.currentTarget.value)} required data-autofocus />
      {error !== null && <ErrorState error={error} />}
      <div className="row to-end">
        <Button onClick={onClose}>{t('do.cancel')}</Button>
        <Button type="submit" variant="filled" loading={busy} disabled={!value.trim() || value === start}>
          {verb}
        </Button>
      </div>
    </form>
  )
}
