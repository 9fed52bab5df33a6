import { Button, Modal, NumberInput, Tabs, TextInput } from '@mantine/core'
import { useQuery, useQueryClient } from '@tanstack/react-query'
import { getRouteApi, useNavigate } from '@tanstack/react-router'
import { useState, type FormEvent } from 'react'
import { parsed } from '@/api/http'
import { amount, isMemory, order, slotLine, slotName } from '@/design/amounts'
import { PagedTable, type Column } from '@/design/DataTable'
import { Icon } from '@/design/icons'
import { ConfirmAction, EmptyState, ErrorState, PageHead, useTitle } from '@/design/parts'
import { span } from '@/design/time'
import { t } from '@/words'
import { SearchField } from '@/design/SearchField'
import { LimitsPreview } from './LimitsPreview'
import { OwnPolicies } from './OwnPolicies'
import { draftKey, type Draft } from './preview'
import { createPolicy, deletePolicy, listPolicies, modifyPolicy, slotsQuery, type KeypairPolicy } from './queries'

const GiB = 1 << 30
const unlimited = (n: number | null | undefined) => !n || n < 0

const route = getRouteApi('/admin/policies')
const kinds = ['keypair', 'user', 'project'] as const

export function PoliciesPage() {
  useTitle(t('nav.policies'))
  const search = route.useSearch()
  const kind = kinds.find((k) => k === search.tab) ?? 'keypair'
  const go = useNavigate({ from: '/admin/policies' })
  const [making, setMaking] = useState(false)
  const [open, setOpen] = useState<KeypairPolicy | 'new' | null>(null)
  const none = <span className="dim">{t('policy.nolimit')}</span>
  const columns: Column<KeypairPolicy>[] = [
    { id: 'name', title: t('col.name'), width: 'minmax(140px, 1fr)', cell: (p) => <strong className="cut">{p.name}</strong> },
    {
      id: 'slots',
      title: t('policy.slots'),
      width: 'minmax(180px, 2fr)',
      cell: (p) => slotLine(parsed(p.total_resource_slots, {})) || none,
    },
    {
      id: 'sessions',
      title: t('policy.sessions'),
      width: '120px',
      num: true,
      cell: (p) => (unlimited(p.max_concurrent_sessions) ? none : p.max_concurrent_sessions),
    },
    {
      id: 'containers',
      title: t('policy.containers'),
      width: '140px',
      num: true,
      wide: true,
      cell: (p) => (unlimited(p.max_containers_per_session) ? none : p.max_containers_per_session),
    },
    {
      id: 'idle',
      title: t('policy.idle'),
      width: '120px',
      num: true,
      wide: true,
      cell: (p) => (unlimited(p.idle_timeout) ? none : span(p.idle_timeout * 1000)),
    },
    {
      id: 'life',
      title: t('policy.life'),
      width: '120px',
      num: true,
      wide: true,
      cell: (p) => (unlimited(p.max_session_lifetime) ? none : span(p.max_session_lifetime * 1000)),
    },
  ]
  return (
    <div className="page">
      <PageHead title={t('nav.policies')} sub={<span>{t(kind === 'keypair' ? 'policy.text' : `policy.text.${kind}`)}</span>}>
        <SearchField
          key={kind}
          label={t('policy.find')}
          value={search.q}
          onFind={(q) => void go({ search: (old) => ({ ...old, q }) as typeof search, replace: true })}
        />
        <Button variant="filled" leftSection={<Icon name="plus" />} onClick={() => (kind === 'keypair' ? setOpen('new') : setMaking(true))}>
          {t('policy.new')}
        </Button>
      </PageHead>
      <Tabs value={kind} onChange={(v) => void go({ search: v && v !== 'keypair' ? { tab: v } : {}, replace: true })}>
        <Tabs.List>
          {kinds.map((k) => (
            <Tabs.Tab key={k} value={k}>
              {t(`policy.tab.${k}`)}
            </Tabs.Tab>
          ))}
        </Tabs.List>
      </Tabs>
      {kind === 'keypair' ? (
        <div className="panel">
          <PagedTable
            of={['resource', 'policies', 'page', search.q ?? '']}
            load={(l, o, s) => listPolicies(search.q, l, o, s)}
            label={t('nav.policies')}
            columns={columns}
            rowKey={(p) => p.name}
            onOpen={setOpen}
            empty={<EmptyState title={t(search.q ? 'find.none' : 'policy.none')} cli="berth policy create NAME" />}
          />
        </div>
      ) : (
        <OwnPolicies key={kind} of={kind} find={search.q} making={making} onMade={() => setMaking(false)} />
      )}
      <Modal opened={open !== null} onClose={() => setOpen(null)} title={open === 'new' ? t('policy.new') : (open?.name ?? '')} size={680}>
        {open !== null && <PolicyForm of={open === 'new' ? null : open} onDone={() => setOpen(null)} />}
      </Modal>
    </div>
  )
}

function PolicyForm({ of: p, onDone }: { of: KeypairPolicy | null; onDone: () => void }) {
  const client = useQueryClient()
  const slots = useQuery(slotsQuery)
  const before = parsed<Record<string, string>>(p?.total_resource_slots, {})
  const [name, setName] = useState('')
  const [limits, setLimits] = useState<Record<string, number | ''>>(() =>
    Object.fromEntries(Object.entries(before).map(([s, v]) => [s, (amount(v) ?? 0) / (isMemory(s) ? GiB : 1)])),
  )
  const [sessions, setSessions] = useState<number | string>(p?.max_concurrent_sessions || '')
  const [containers, setContainers] = useState<number | string>(p?.max_containers_per_session ?? 1)
  const [idle, setIdle] = useState<number | string>(p?.idle_timeout ? p.idle_timeout / 60 : '')
  const [life, setLife] = useState<number | string>(p?.max_session_lifetime ? p.max_session_lifetime / 3600 : '')
  const [busy, setBusy] = useState(false)
  const [error, setError] = useState<unknown>(null)
  const [ask, setAsk] = useState(false)
  const draft: Draft = {
    [draftKey('running', 'live sessions')]: Number(sessions) || null,
    [draftKey('session', 'containers')]: Number(containers) || 1,
    [draftKey('session', 'seconds of life')]: Math.round((Number(life) || 0) * 3600) || null,
    [draftKey('session', 'idle seconds')]: Math.round((Number(idle) || 0) * 60) || null,
  }
  for (const s of new Set([...Object.keys(slots.data ?? {}), ...Object.keys(limits)])) {
    const v = limits[s] ?? ''
    draft[draftKey('running', s)] = v === '' ? null : Math.round(v * (isMemory(s) ? GiB : 1))
  }
  const total: Record<string, string> = {}
  for (const [s, v] of Object.entries(limits)) if (v !== '') total[s] = String(Math.round(v * (isMemory(s) ? GiB : 1)))
  const props = {
    default_for_unspecified: p?.default_for_unspecified ?? 'UNLIMITED',
    total_resource_slots: JSON.stringify(total),
    max_concurrent_sessions: Number(sessions) || 0,
    max_containers_per_session: Number(containers) || 1,
    idle_timeout: Math.round((Number(idle) || 0) * 60),
    max_session_lifetime: Math.round((Number(life) || 0) * 3600),
  }
  const [shown] = useState(props) // when the form was opened
  const submit = (e: FormEvent) => {
    e.preventDefault()
    setBusy(true)
    setError(null)
    // Only what was changed here is sent: another administrator may have changed the rest meanwhile.
    const changed = Object.fromEntries(Object.entries(props).filter(([k, v]) => shown[k as keyof typeof props] !== v))
    const work = p ? modifyPolicy(p.name, changed) : createPolicy(name.trim(), props)
    work
      .then(() => client.invalidateQueries({ queryKey: ['resource'] }))
      .then(onDone, setError)
      .finally(() => setBusy(false))
  }
  const number = (label: string, value: number | string, set: (v: number | string) => void, description?: string) => (
    <NumberInput
      label={label}
      value={value}
      onChange={set}
      min={0}
      placeholder={t('policy.nolimit')}
      w={170}
      {...(description ? { description } : {})}
    />
  )
  return (
    <form className="stack" onSubmit={submit}>
      {!p && <TextInput label={t('col.name')} value={name} onChange={(e) => setName(e.currentTarget.value)} required data-autofocus />}
      <span className="section-title">{t('policy.slots')}</span>
      <div className="row wrap top">
        {order([...new Set([...Object.keys(slots.data ?? {}), ...Object.keys(limits)])]).map((s) => (
          <NumberInput
            key={s}
            label={slotName(s) + (isMemory(s) ? ' (GiB)' : '')}
            value={limits[s] ?? ''}
            min={0}
            placeholder={t('policy.nolimit')}
            w={150}
            onChange={(v) => setLimits({ ...limits, [s]: v === '' ? '' : Number(v) })}
          />
        ))}
      </div>
      <span className="section-title">{t('nav.sessions')}</span>
      <div className="row wrap top">
        {number(t('policy.sessions'), sessions, setSessions)}
        {number(t('policy.containers'), containers, setContainers)}
        {number(t('policy.idle.min'), idle, setIdle)}
        {number(t('policy.life.h'), life, setLife)}
      </div>
      {p && <LimitsPreview policy={p.name} draft={draft} />}
      <p className="small dim">{t('policy.when')}</p>
      {error !== null && <ErrorState error={error} />}
      <div className="row">
        {p && p.name !== 'default' && <Button onClick={() => setAsk(true)}>{t('policy.delete')}</Button>}
        <span className="end row">
          <Button onClick={onDone}>{t('do.cancel')}</Button>
          <Button type="submit" variant="filled" loading={busy}>
            {p ? t('do.save') : t('policy.create')}
          </Button>
        </span>
      </div>
      {p && (
        <ConfirmAction
          open={ask}
          onClose={() => setAsk(false)}
          title={t('policy.delete')}
          verb={t('policy.delete')}
          doing={t('do.deleting')}
          onDo={async () => {
            await deletePolicy(p.name)
            await client.invalidateQueries({ queryKey: ['resource'] })
            onDone()
          }}>
          {t('policy.delete.text', { name: p.name })}
        </ConfirmAction>
      )}
    </form>
  )
}
