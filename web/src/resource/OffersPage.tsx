import { Button, Modal, NumberInput, Tabs, TextInput } from '@mantine/core'
import { useQuery, useQueryClient } from '@tanstack/react-query'
import { getRouteApi, useNavigate } from '@tanstack/react-router'
import { useState, type FormEvent } from 'react'
import { amount, bytes, isMemory, order, slotLine, slotName } from '@/design/amounts'
import { Listing, PagedTable, type Column } from '@/design/DataTable'
import { Icon } from '@/design/icons'
import { among, Picker } from '@/design/Picker'
import { ConfirmAction, EmptyState, ErrorState, PageHead, toast, useTitle } from '@/design/parts'
import { holds, SearchField } from '@/design/SearchField'
import { t } from '@/words'
import {
  createOffer,
  deleteOffer,
  modifyOffer,
  offersQuery,
  anyRegistryQuery,
  rescanImages,
  resourceGroupsQuery,
  slotsQuery,
  listRegistries,
  listStorages,
  type Offer,
  type Registry,
  type Storage,
} from './queries'

const GiB = 2 ** 30
const route = getRouteApi('/admin/offers')
const tabs = ['presets', 'storages', 'registries'] as const

export function OffersPage() {
  const search = route.useSearch()
  const tab = tabs.find((x) => x === search.tab) ?? 'presets'
  const go = useNavigate({ from: '/admin/offers' })
  useTitle(t('nav.resources'))
  const [open, setOpen] = useState<Offer | 'new' | null>(null)
  return (
    <div className="page">
      <PageHead title={t('nav.resources')} sub={<span>{t('offer.text')}</span>}>
        <SearchField
          key={tab}
          label={t('offer.find')}
          value={search.q}
          onFind={(q) => void go({ search: (old) => ({ ...old, q }) as typeof search, replace: true })}
        />
        {tab === 'presets' && (
          <Button variant="filled" leftSection={<Icon name="plus" />} onClick={() => setOpen('new')}>
            {t('preset.new')}
          </Button>
        )}
      </PageHead>
      <Tabs value={tab} onChange={(v) => void go({ search: v && v !== 'presets' ? { tab: v } : {}, replace: true })}>
        <Tabs.List>
          {tabs.map((x) => (
            <Tabs.Tab key={x} value={x}>
              {t(`offer.${x}`)}
            </Tabs.Tab>
          ))}
        </Tabs.List>
      </Tabs>
      {tab === 'presets' && <Presets onOpen={setOpen} find={search.q} />}
      {tab === 'storages' && <Storages find={search.q} />}
      {tab === 'registries' && <Registries find={search.q} />}
      <Modal opened={open !== null} onClose={() => setOpen(null)} title={open === 'new' ? t('preset.new') : (open?.name ?? '')} size={560}>
        {open !== null && <PresetForm of={open === 'new' ? null : open} onDone={() => setOpen(null)} />}
      </Modal>
    </div>
  )
}

function Presets({ onOpen, find }: { onOpen: (p: Offer) => void; find: string | undefined }) {
  const q = useQuery(offersQuery)
  const columns: Column<Offer>[] = [
    { id: 'name', title: t('col.name'), width: 'minmax(140px, 1fr)', cell: (p) => <strong className="cut">{p.name}</strong> },
    { id: 'slots', title: t('col.resources'), width: 'minmax(200px, 2fr)', cell: (p) => slotLine(p.resource_slots) },
    {
      id: 'shm',
      title: t('preset.shm.col'),
      width: '140px',
      num: true,
      wide: true,
      cell: (p) => (p.shared_memory ? bytes(p.shared_memory) : <span className="dim">–</span>),
    },
    {
      id: 'group',
      title: t('about.group'),
      width: '160px',
      wide: true,
      cell: (p) => p.scaling_group_name ?? <span className="dim">{t('preset.every')}</span>,
    },
  ]
  return (
    <div className="panel">
      <Listing
        label={t('offer.presets')}
        columns={columns}
        rows={q.data?.filter((p) => holds(`${p.name} ${p.scaling_group_name ?? ''}`, find))}
        rowKey={(p) => p.id}
        onOpen={onOpen}
        error={q.error}
        retry={() => void q.refetch()}
        empty={
          find ? (
            <EmptyState title={t('find.none')} />
          ) : (
            <EmptyState title={t('preset.none')} text={t('preset.none.text')} cli="berth preset create NAME" />
          )
        }
      />
    </div>
  )
}

function PresetForm({ of: p, onDone }: { of: Offer | null; onDone: () => void }) {
  const client = useQueryClient()
  const slots = useQuery(slotsQuery)
  const groups = useQuery(resourceGroupsQuery)
  const [name, setName] = useState(p?.name ?? '')
  const [sizes, setSizes] = useState<Record<string, number | string>>(() =>
    Object.fromEntries(Object.entries(p?.resource_slots ?? {}).map(([s, v]) => [s, (amount(v) ?? 0) / (isMemory(s) ? GiB : 1)])),
  )
  const [shm, setShm] = useState<number | string>(p?.shared_memory ? p.shared_memory / GiB : '')
  const [group, setGroup] = useState<string | null>(p?.scaling_group_name ?? null)
  const [busy, setBusy] = useState(false)
  const [error, setError] = useState<unknown>(null)
  const [ask, setAsk] = useState(false)
  const done = () => client.invalidateQueries({ queryKey: ['resource'] })
  const submit = (e: FormEvent) => {
    e.preventDefault()
    setBusy(true)
    setError(null)
    const of: Record<string, string> = {}
    for (const [s, v] of Object.entries(sizes)) if (v !== '') of[s] = String(isMemory(s) ? Math.round(Number(v) * GiB) : v)
    const props: Record<string, unknown> = { resource_slots: JSON.stringify(of) }
    if (shm !== '') props['shared_memory'] = String(Math.round(Number(shm) * GiB))
    else if (p?.shared_memory) props['shared_memory'] = ''
    if (group !== (p?.scaling_group_name ?? null)) props['scaling_group_name'] = group ?? ''
    const work = p ? modifyOffer(p.id, name === p.name ? props : { ...props, name: name.trim() }) : createOffer(name.trim(), props)
    work
      .then(done)
      .then(onDone, setError)
      .finally(() => setBusy(false))
  }
  return (
    <form className="stack" onSubmit={submit}>
      <TextInput
        label={t('col.name')}
        value={name}
        onChange={(e) => setName(e.currentTarget.value)}
        required
        maxLength={64}
        data-autofocus
      />
      <div className="grid2">
        {order([...new Set(['cpu', 'mem', ...Object.keys(slots.data ?? {}), ...Object.keys(sizes)])]).map((s) => (
          <NumberInput
            key={s}
            label={slotName(s) + (isMemory(s) ? ' (GiB)' : '')}
            value={sizes[s] ?? ''}
            min={0}
            required={s === 'cpu' || s === 'mem'}
            onChange={(v) => setSizes({ ...sizes, [s]: v })}
          />
        ))}
        <NumberInput label={t('preset.shm')} value={shm} min={0} onChange={setShm} />
        <Picker
          label={t('preset.group')}
          of={among(
            'groups',
            (groups.data ?? []).map((g) => g.name),
          )}
          value={group}
          onChange={setGroup}
          placeholder={t('preset.every')}
          clearable
        />
      </div>
      {error !== null && <ErrorState error={error} />}
      <div className="row">
        {p && <Button onClick={() => setAsk(true)}>{t('preset.delete')}</Button>}
        <span className="end row">
          <Button onClick={onDone}>{t('do.cancel')}</Button>
          <Button type="submit" variant="filled" loading={busy}>
            {p ? t('do.save') : t('preset.create')}
          </Button>
        </span>
      </div>
      {p && (
        <ConfirmAction
          open={ask}
          onClose={() => setAsk(false)}
          title={t('preset.delete')}
          verb={t('preset.delete')}
          doing={t('do.deleting')}
          onDo={async () => {
            await deleteOffer(p.id)
            await done()
            onDone()
          }}>
          {t('preset.delete.text', { name: p.name })}
        </ConfirmAction>
      )}
    </form>
  )
}

function Storages({ find }: { find: string | undefined }) {
  const columns: Column<Storage>[] = [
    { id: 'name', title: t('col.name'), width: 'minmax(160px, 1fr)', cell: (s) => <strong className="cut">{s.id}</strong> },
    { id: 'backend', title: t('storage.backend'), width: '120px', wide: true, cell: (s) => s.backend },
    { id: 'proxy', title: t('storage.proxy'), width: '140px', wide: true, cell: (s) => s.proxy },
    {
      id: 'can',
      title: t('storage.can'),
      width: 'minmax(140px, 1fr)',
      wide: true,
      cell: (s) => s.capabilities.join(', ') || <span className="dim">–</span>,
    },
    {
      id: 'use',
      title: t('storage.use'),
      width: 'minmax(160px, 1fr)',
      num: true,
      cell: (s) => `${bytes(s.usage.used_bytes)} / ${bytes(s.usage.capacity_bytes)}`,
    },
  ]
  return (
    <div className="panel">
      <PagedTable
        of={['resource', 'storages', find ?? '']}
        load={(l, o, s) => listStorages(find, l, o, s)}
        label={t('offer.storages')}
        columns={columns}
        rowKey={(s) => s.id}
        empty={<EmptyState title={t(find ? 'find.none' : 'storage.none')} cli="berth storage --config storage.toml" />}
      />
    </div>
  )
}

function Registries({ find }: { find: string | undefined }) {
  const first = useQuery(anyRegistryQuery)
  const [busy, setBusy] = useState(false)
  const [error, setError] = useState<unknown>(null)
  const rescan = () => {
    setBusy(true)
    setError(null)
    rescanImages()
      .then(() => toast(t('registry.rescanned')), setError)
      .finally(() => setBusy(false))
  }
  const columns: Column<Registry>[] = [
    { id: 'name', title: t('col.name'), width: 'minmax(160px, 1fr)', cell: (r) => r.registry_name },
    { id: 'url', title: 'URL', width: 'minmax(200px, 2fr)', cell: (r) => r.url },
    { id: 'project', title: t('nav.projects'), width: '160px', wide: true, cell: (r) => r.project },
  ]
  const button = (
    <Button onClick={rescan} loading={busy}>
      {t('registry.rescan')}
    </Button>
  )
  return (
    <div className="stack">
      {!!first.data && (
        <div className="row">
          <span className="end">{button}</span>
        </div>
      )}
      {error !== null && <ErrorState error={error} />}
      <div className="panel">
        <PagedTable
          of={['resource', 'registries', find ?? '']}
          load={(l, o, s) => listRegistries(find, l, o, s)}
          label={t('offer.registries')}
          columns={columns}
          rowKey={(r) => r.id}
          empty={
            find ? (
              <EmptyState title={t('find.none')} />
            ) : (
              <EmptyState title={t('registry.none')} text={t('registry.none.text')} cli="berth image list" action={button} />
            )
          }
        />
      </div>
    </div>
  )
}
