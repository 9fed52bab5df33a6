import { Button, Menu, Modal, Select, TextInput } from '@mantine/core'
import { useQuery, useQueryClient } from '@tanstack/react-query'
import { getRouteApi, Link, useNavigate } from '@tanstack/react-router'
import { useRef, useState, type FormEvent } from 'react'
import { bytes } from '@/design/amounts'
import { Listing, type Column } from '@/design/DataTable'
import { Icon } from '@/design/icons'
import { Ago, Bone, ConfirmAction, EmptyState, ErrorState, Id, PageHead, Skeleton, toast, useTitle } from '@/design/parts'
import { t, tAny } from '@/words'
import {
  deleteFiles,
  downloadAddress,
  filesQuery,
  folderQuery,
  invite,
  leaveFolder,
  makeDirectory,
  renameFile,
  renameFolder,
  sentQuery,
  setShare,
  sharesQuery,
  trashFolder,
  type File as Entry,
  type FolderDetail,
} from './queries'
import { droppedFiles, upload } from './uploads'

const route = getRouteApi('/data/$folder')

export function FolderPage() {
  const { folder } = route.useParams()
  const q = useQuery(folderQuery(folder))
  useTitle(q.data?.name ?? t('nav.data'))
  if (q.isError && !q.data)
    return (
      <div className="page">
        <ErrorState error={q.error} retry={() => void q.refetch()} />
        <Button component={Link} to="/data" style={{ alignSelf: 'flex-start' }}>
          {t('folder.all')}
        </Button>
      </div>
    )
  if (!q.data)
    return (
      <div className="page">
        <Bone w={240} h={28} />
        <div className="panel" style={{ padding: 16 }}>
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
  const [ask, setAsk] = useState<'' | 'dir' | 'rename' | 'delete' | 'name' | 'trash' | 'share' | 'leave'>('')
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
  const download = (names: string[]) => {
    setError(null)
    const one = names.length === 1 ? q.data?.items.find((e) => e.name === names[0]) : undefined
    downloadAddress(f.id, names.map(full), !one || one.type === 'DIRECTORY').then((url) => {
      const a = document.createElement('a')
      a.href = url
      a.rel = 'noopener'
      a.download = ''
      a.click()
    }, setError)
  }
  const parts = path === '.' ? [] : path.split('/')
  const columns: Column<Entry>[] = [
    {
      id: 'name',
      title: t('col.name'),
      width: 'minmax(200px, 1fr)',
      cell: (e) => (
        <button
          type="button"
          className="copy"
          style={{ color: 'var(--b-ink)', padding: 0 }}
          onClick={() => (e.type === 'DIRECTORY' ? open(full(e.name)) : download([e.name]))}>
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
      className="page"
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
      }}
      style={over ? { outline: '2px dashed var(--b-accent)', outlineOffset: -8 } : {}}>
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
            {can('update_attribute') && <Menu.Item onClick={() => setAsk('name')}>{t('do.rename')}</Menu.Item>}
            {!f.is_owner && f.ownership_type === 'user' && <Menu.Item onClick={() => setAsk('leave')}>{t('folder.leave')}</Menu.Item>}
            {can('delete_vfolder') && (
              <Menu.Item color="red" onClick={() => setAsk('trash')}>
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
        <nav className="row wrap grow" aria-label={t('file.path')} style={{ gap: 4, fontSize: 13 }}>
          <button type="button" className="copy" onClick={() => open('.')} aria-current={parts.length === 0 ? 'page' : undefined}>
            {f.name}
          </button>
          {parts.map((p, i) => (
            <span key={i} className="row" style={{ gap: 4 }}>
              <span className="dim">/</span>
              <button
                type="button"
                className="copy"
                onClick={() => open(parts.slice(0, i + 1).join('/'))}
                aria-current={i === parts.length - 1 ? 'page' : undefined}>
                {p}
              </button>
            </span>
          ))}
        </nav>
        {can('write_content') && (
          <Button size="compact-sm" onClick={() => setAsk('dir')} leftSection={<Icon name="plus" size={12} />}>
            {t('file.newdir')}
          </Button>
        )}
      </div>
      {error !== null && <ErrorState error={error} />}
      {q.data?.truncated && (
        <div className="note">
          <Icon name="info" />
          <span>{t('file.truncated', { n: q.data.items.length })}</span>
        </div>
      )}
      <div className="panel">
        <Listing
          label={t('file.list')}
          columns={columns}
          rows={q.data ? [...q.data.items].sort(dirFirst) : undefined}
          rowKey={(e) => e.name}
          error={q.error}
          retry={() => void q.refetch()}
          onOpen={(e) => {
            if (e.type === 'DIRECTORY') open(full(e.name))
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
      <div className="row" style={{ justifyContent: 'flex-end' }}>
        <Button onClick={onClose}>{t('do.cancel')}</Button>
        <Button type="submit" variant="filled" loading={busy} disabled={!value.trim() || value === start}>
          {verb}
        </Button>
      </div>
    </form>
  )
}

function ShareDialog({ open, onClose, of: f }: { open: boolean; onClose: () => void; of: FolderDetail }) {
  const client = useQueryClient()
  const shares = useQuery({ ...sharesQuery(f.id), enabled: open })
  const sent = useQuery({ ...sentQuery, enabled: open })
  const [email, setEmail] = useState('')
  const [perm, setPerm] = useState('ro')
  const [busy, setBusy] = useState(false)
  const [error, setError] = useState<unknown>(null)
  const rights = ['ro', 'rw', 'wd'].map((v) => ({ value: v, label: tAny(`perm.${v}`) }))
  const doing = (p: Promise<unknown>) => {
    setBusy(true)
    setError(null)
    return p.then(() => client.invalidateQueries({ queryKey: ['folder'] }), setError).finally(() => setBusy(false))
  }
  const submit = (e: FormEvent) => {
    e.preventDefault()
    void doing(
      invite(f.id, perm, [email.trim()]).then((r) => {
        if (!r.invited_ids.length) throw new Error(t('share.nobody', { email }))
        setEmail('')
      }),
    )
  }
  const waiting = (sent.data ?? []).filter((i) => i.vfolder_id.replace(/-/g, '') === f.id && i.state === 'pending')
  return (
    <Modal opened={open} onClose={onClose} title={t('share.title', { name: f.name })} size={520}>
      <form className="stack" onSubmit={submit}>
        <div className="row" style={{ alignItems: 'flex-end' }}>
          <TextInput
            type="email"
            label={t('share.who')}
            className="grow"
            value={email}
            onChange={(e) => setEmail(e.currentTarget.value)}
            required
            data-autofocus
          />
          <Select label={t('folder.right')} data={rights} value={perm} onChange={(v) => setPerm(v ?? 'ro')} w={160} allowDeselect={false} />
          <Button type="submit" variant="filled" h={36} loading={busy}>
            {t('share.do')}
          </Button>
        </div>
        <p className="small dim">{t(`share.${perm as 'ro'}.text`)}</p>
        {error !== null && <ErrorState error={error} />}
        {(shares.data ?? []).map((s) => (
          <div key={s.shared_to.uuid} className="row">
            <Icon name="user" />
            <span className="grow cut">{s.shared_to.email}</span>
            <Select
              size="xs"
              w={140}
              data={rights}
              value={s.perm}
              allowDeselect={false}
              aria-label={t('share.right.of', { who: s.shared_to.email })}
              onChange={(v) => v && void doing(setShare(f.id, s.shared_to.uuid, v))}
            />
            <Button size="compact-sm" onClick={() => void doing(setShare(f.id, s.shared_to.uuid, null))}>
              {t('share.take')}
            </Button>
          </div>
        ))}
        {waiting.map((i) => (
          <div key={i.id} className="row soft">
            <Icon name="s-waiting" />
            <span className="grow cut">{i.invitee}</span>
            <span className="small">{t('share.waiting')}</span>
          </div>
        ))}
      </form>
    </Modal>
  )
}
