import { Button, Checkbox, Modal, SegmentedControl, Select, Tabs, TextInput } from '@mantine/core'
import { useQuery, useQueryClient } from '@tanstack/react-query'
import { getRouteApi, useNavigate } from '@tanstack/react-router'
import { useState, type FormEvent } from 'react'
import { bytes } from '@/design/amounts'
import { Listing, RowLink, type Column } from '@/design/DataTable'
import { Icon } from '@/design/icons'
import { Ago, ConfirmAction, EmptyState, ErrorState, PageHead, Skeleton, StateBadge, toast, useTitle } from '@/design/parts'
import { holds, SearchField } from '@/design/SearchField'
import { isAdmin, useMe, useProject } from '@/tenancy/me'
import { t, tAny } from '@/words'
import {
  acceptInvitation,
  createFolder,
  declineInvitation,
  foldersQuery,
  hostsQuery,
  invitationsQuery,
  purgeFolder,
  restoreFolder,
  trashFolder,
  type Folder,
} from './queries'
import { Spaces } from './Space'
import { droppedFiles, upload, type Dropped } from './uploads'

const route = getRouteApi('/data')

export const isTrash = (f: Folder) => f.status.startsWith('delete')

export function FoldersPage() {
  const search = route.useSearch()
  const go = useNavigate({ from: '/data' })
  const client = useQueryClient()
  useTitle(t('nav.data'))
  const q = useQuery(foldersQuery)
  const invitations = useQuery(invitationsQuery)
  const [selected, setSelected] = useState<Set<string>>(new Set())
  const [asking, setAsking] = useState<'' | 'trash' | 'purge'>('')
  const [dropped, setDropped] = useState<Dropped[]>([])
  const [over, setOver] = useState(false)
  const tab = search.tab ?? 'folders'
  const folders = q.data?.filter((f) => !isTrash(f) && holds(f.name, search.q))
  const trash = q.data?.filter((f) => f.status === 'delete-pending' || f.status === 'delete-error' || f.status === 'delete-ongoing')
  const look = () => client.invalidateQueries({ queryKey: ['folder'] })
  const all = (what: (id: string) => Promise<unknown>) => async () => {
    try {
      const done = await Promise.allSettled([...selected].map(what))
      const bad = done.find((d): d is PromiseRejectedResult => d.status === 'rejected')
      if (bad) throw bad.reason
      setSelected(new Set())
    } finally {
      await look()
    }
  }
  const toTrash = async () => {
    const ids = [...selected]
    await all(trashFolder)()
    toast(t('folder.trashed', { n: ids.length }), {
      label: t('do.undo'),
      run: () => void Promise.allSettled(ids.map(restoreFolder)).then(look),
    })
  }
  const columns: Column<Folder>[] = [
    {
      id: 'name',
      title: t('col.name'),
      width: 'minmax(180px, 2fr)',
      cell: (f) => (
        <RowLink href={`/data/${f.id}`} title={f.name}>
          <span className="row">
            <Icon name="folder" />
            {f.name}
          </span>
        </RowLink>
      ),
    },
    { id: 'status', title: t('col.status'), width: '130px', cell: (f) => <StateBadge status={f.status} />, glow: (f) => f.status },
    {
      id: 'who',
      title: t('folder.whose'),
      width: 'minmax(140px, 1fr)',
      wide: true,
      cell: (f) =>
        f.ownership_type === 'group' ? t('folder.ofproject', { name: f.group_name ?? '' }) : f.is_owner ? t('folder.mine') : f.user_email,
    },
    { id: 'perm', title: t('folder.right'), width: '120px', wide: true, cell: (f) => tAny(`perm.${f.permission}`, f.permission) },
    { id: 'size', title: t('col.size'), width: '100px', num: true, wide: true, cell: (f) => bytes(f.cur_size) },
    { id: 'host', title: t('folder.host'), width: '150px', wide: true, cell: (f) => <span className="soft">{f.host}</span> },
    { id: 'created', title: t('col.created'), width: '120px', cell: (f) => <Ago at={f.created_at} /> },
  ]
  const make = (
    <Button variant="filled" leftSection={<Icon name="plus" />} onClick={() => void go({ search: { make: true } })}>
      {t('folder.new')}
    </Button>
  )
  const writable = (q.data ?? []).filter((f) => f.status === 'ready' && (f.is_owner || f.permission !== 'ro'))
  const send = (f: Folder, list: Dropped[]) => {
    setDropped([])
    upload(f.id, f.name, '.', list).catch((e: Error) => toast(e.message, undefined, 12_000))
  }
  return (
    <div
      className={`page${over ? ' dropping' : ''}`}
      onDragOver={(e) => {
        if (!e.dataTransfer.types.includes('Files')) return
        e.preventDefault()
        setOver(true)
      }}
      onDragLeave={(e) => {
        if (e.currentTarget === e.target) setOver(false)
      }}
      onDrop={(e) => {
        e.preventDefault()
        setOver(false)
        void droppedFiles(e.dataTransfer).then(
          (list) => {
            if (list.length && writable.length === 1) send(writable[0]!, list)
            else setDropped(list)
          },
          (err: Error) => toast(err.message),
        )
      }}>
      <Modal opened={dropped.length > 0} onClose={() => setDropped([])} title={t('drop.title')}>
        <div className="stack">
          <p className="small soft">{t('drop.text', { n: dropped.length })}</p>
          {writable.slice(0, 60).map((f) => (
            <Button key={f.id} justify="flex-start" leftSection={<Icon name="folder" />} onClick={() => send(f, dropped)}>
              {f.name}
            </Button>
          ))}
          {writable.length === 0 && <p>{t('folder.none')}</p>}
        </div>
      </Modal>
      <PageHead title={t('nav.data')}>
        {tab === 'folders' && ((q.data?.length ?? 0) > 8 || search.q) && (
          <SearchField
            label={t('folder.find')}
            value={search.q}
            onFind={(text) =>
              void go({
                search: ({ q: _, ...old }) => (text ? { ...old, q: text } : old),
                replace: true,
              })
            }
          />
        )}
        {make}
      </PageHead>
      <Tabs
        value={tab}
        onChange={(v) => {
          setSelected(new Set())
          void go({ search: v && v !== 'folders' ? { tab: v } : {}, replace: true })
        }}>
        <Tabs.List>
          <Tabs.Tab value="folders">{t('folder.all')}</Tabs.Tab>
          <Tabs.Tab
            value="invitations"
            rightSection={invitations.data?.length ? <span className="tag">{invitations.data.length}</span> : null}>
            {t('folder.invitations')}
          </Tabs.Tab>
          <Tabs.Tab value="trash" rightSection={trash?.length ? <span className="tag">{trash.length}</span> : null}>
            {t('folder.trash')}
          </Tabs.Tab>
        </Tabs.List>
      </Tabs>
      {tab === 'folders' && q.data && <Spaces of={q.data} />}
      {tab === 'invitations' ? (
        <Invitations />
      ) : (
        <div className="panel">
          <Listing
            label={t('nav.data')}
            columns={columns}
            rows={tab === 'trash' ? trash : folders}
            rowKey={(f) => f.id}
            error={q.error}
            retry={() => void q.refetch()}
            onOpen={(f) => {
              if (tab !== 'trash') void go({ to: '/data/$folder', params: { folder: f.id } })
            }}
            selected={selected}
            onSelect={setSelected}
            bulk={
              tab === 'trash' ? (
                <>
                  <span>{t('table.selected', { n: selected.size })}</span>
                  <Button size="compact-sm" onClick={() => void all(restoreFolder)().catch((e: Error) => toast(e.message))}>
                    {t('folder.restore')}
                  </Button>
                  <Button size="compact-sm" variant="filled" color="red.8" onClick={() => setAsking('purge')}>
                    {t('folder.purge', { n: selected.size })}
                  </Button>
                </>
              ) : (
                <>
                  <span>{t('table.selected', { n: selected.size })}</span>
                  <Button
                    size="compact-sm"
                    variant="filled"
                    color="red.8"
                    onClick={() => void toTrash().catch((e: Error) => toast(e.message, undefined, 12_000))}>
                    {t('folder.totrash', { n: selected.size })}
                  </Button>
                </>
              )
            }
            empty={
              tab === 'trash' ? (
                <EmptyState title={t('folder.trash.none')} text={t('folder.trash.text')} cli="berth folder restore NAME" />
              ) : (
                <EmptyState
                  title={search.q ? t('folder.nomatch') : t('folder.none')}
                  text={t('folder.none.text')}
                  action={make}
                  cli="berth folder create data"
                />
              )
            }
          />
        </div>
      )}
      <ConfirmAction
        open={asking === 'purge'}
        onClose={() => setAsking('')}
        title={t('folder.purge', { n: selected.size })}
        verb={t('folder.purge', { n: selected.size })}
        doing={t('do.deleting')}
        onDo={all(purgeFolder)}>
        {t('folder.purge.loses', {
          names: (trash ?? [])
            .filter((f) => selected.has(f.id))
            .map((f) => f.name)
            .join(', '),
        })}
      </ConfirmAction>
      <Make open={!!search.make} onClose={() => void go({ search: tab === 'folders' ? {} : { tab }, replace: true })} />
    </div>
  )
}

function Make({ open, onClose }: { open: boolean; onClose: () => void }) {
  const me = useMe()
  const project = useProject()
  const client = useQueryClient()
  const go = useNavigate()
  const hosts = useQuery({ ...hostsQuery, enabled: open })
  const [name, setName] = useState('')
  const [host, setHost] = useState<string | null>(null)
  const [whose, setWhose] = useState('user')
  const [cloneable, setCloneable] = useState(false)
  const [busy, setBusy] = useState(false)
  const [error, setError] = useState<unknown>(null)
  const submit = async (e: FormEvent) => {
    e.preventDefault()
    if (busy) return
    setBusy(true)
    setError(null)
    try {
      const f = await createFolder({
        name: name.trim(),
        ...(host ? { host } : {}),
        ...(whose === 'group' ? { group: project } : {}),
        ...(cloneable ? { cloneable } : {}),
      })
      await client.invalidateQueries({ queryKey: ['folder'] })
      setName('')
      await go({ to: '/data/$folder', params: { folder: f.id } })
    } catch (err) {
      setError(err)
    } finally {
      setBusy(false)
    }
  }
  return (
    <Modal opened={open} onClose={onClose} title={t('folder.new')}>
      <form className="stack" onSubmit={(e) => void submit(e)}>
        <TextInput
          label={t('col.name')}
          value={name}
          onChange={(e) => setName(e.currentTarget.value)}
          required
          data-autofocus
          maxLength={64}
          name="folder-name"
        />
        {isAdmin(me) && (
          <SegmentedControl
            value={whose}
            onChange={setWhose}
            data={[
              { value: 'user', label: t('folder.forme') },
              { value: 'group', label: t('folder.forproject', { name: project }) },
            ]}
            aria-label={t('folder.whose')}
          />
        )}
        {(hosts.data?.allowed.length ?? 0) > 1 && (
          <Select
            label={t('folder.host')}
            value={host ?? hosts.data?.default ?? null}
            onChange={setHost}
            data={hosts.data!.allowed.map((h) => ({ value: h, label: h, disabled: !!hosts.data!.volume_info?.[h]?.problem }))}
          />
        )}
        <Checkbox label={t('folder.cloneable')} checked={cloneable} onChange={(e) => setCloneable(e.currentTarget.checked)} />
        {error !== null && <ErrorState error={error} />}
        <div className="row to-end">
          <Button onClick={onClose}>{t('do.cancel')}</Button>
          <Button type="submit" variant="filled" loading={busy}>
            {t('folder.create')}
          </Button>
        </div>
      </form>
    </Modal>
  )
}

function Invitations() {
  const client = useQueryClient()
  const q = useQuery(invitationsQuery)
  const [error, setError] = useState<unknown>(null)
  const [busy, setBusy] = useState('')
  const act = (id: string, what: (id: string) => Promise<unknown>) => {
    setBusy(id)
    setError(null)
    what(id)
      .catch(setError)
      .finally(() => {
        setBusy('')
        void client.invalidateQueries({ queryKey: ['folder'] })
      })
  }
  if (q.isError) return <ErrorState error={q.error} retry={() => void q.refetch()} />
  if (!q.data) return <Skeleton lines={3} />
  return (
    <div className="panel">
      {q.data.length === 0 ? (
        <EmptyState title={t('folder.inv.none')} text={t('folder.inv.text')} cli="berth folder invitations" />
      ) : (
        <div className="lines">
          {q.data.map((i) => (
            <div key={i.id} className="row wrap">
              <Icon name="folder" />
              <div className="grow">
                <strong className="medium">{i.vfolder_name}</strong>
                <div className="small soft">
                  {t('folder.inv.from', { who: i.inviter, right: tAny(`perm.${i.perm}`, i.perm) })} · <Ago at={i.created_at} />
                </div>
              </div>
              <Button loading={busy === i.id} onClick={() => act(i.id, declineInvitation)}>
                {t('folder.decline')}
              </Button>
              <Button variant="filled" loading={busy === i.id} onClick={() => act(i.id, acceptInvitation)}>
                {t('folder.accept')}
              </Button>
            </div>
          ))}
        </div>
      )}
      {error !== null && (
        <div className="pad-m">
          <ErrorState error={error} />
        </div>
      )}
    </div>
  )
}
