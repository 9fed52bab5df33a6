import { Button, Modal, NumberInput, Switch } from '@mantine/core'
import { useQueryClient } from '@tanstack/react-query'
import { getRouteApi, useNavigate } from '@tanstack/react-router'
import { useState, type FormEvent } from 'react'
import { quoted } from '@/api/http'
import { DataTable, type Column } from '@/design/DataTable'
import { Icon } from '@/design/icons'
import { usePaged } from '@/design/paged'
import { Ago, ConfirmAction, Copy, EmptyState, ErrorState, PageHead, StateBadge, useTitle } from '@/design/parts'
import { Picker } from '@/design/Picker'
import { SearchField } from '@/design/SearchField'
import { policyChoices } from '@/resource/queries'
import { t, type Word } from '@/words'
import { createKeypair, deleteKeypair, listKeypairs, modifyKeypair, userChoices, type Keypair } from './queries'

const route = getRouteApi('/admin/keypairs')
const statuses = ['active', 'inactive', 'all'] as const

export function keypairFilter(q: string | undefined, status: string | undefined): string {
  const out: string[] = []
  if (q) {
    const like = quoted(`%${q.replace(/[%_]/g, '\\$&')}%`)
    out.push(`(access_key ilike ${like} | user_id ilike ${like})`)
  }
  if (status !== 'all') out.push(`is_active == ${status !== 'inactive'}`)
  return out.join(' & ')
}

export function KeypairsPage() {
  const search = route.useSearch()
  const go = useNavigate({ from: '/admin/keypairs' })
  useTitle(t('nav.keypairs'))
  const filter = keypairFilter(search.q, search.status)
  const order = search.order ?? 'user_id'
  const paged = usePaged<Keypair>(['tenancy', 'keypairs', filter, order], (l, o, s) => listKeypairs(filter, order, l, o, s))
  const [open, setOpen] = useState<Keypair | 'new' | null>(null)
  const set = (part: Partial<typeof search>) => void go({ search: (old) => ({ ...old, ...part }), replace: true })
  const dash = <span className="dim">–</span>
  const columns: Column<Keypair>[] = [
    {
      id: 'key',
      title: t('keypair.key'),
      width: 'minmax(220px, 1fr)',
      sort: 'access_key',
      cell: (k) => (
        <span className="row">
          <code>{k.access_key}</code> {k.is_main && <span className="tag">{t('keypair.main')}</span>}
        </span>
      ),
    },
    {
      id: 'status',
      title: t('col.status'),
      width: '110px',
      wide: true,
      sort: 'is_active',
      cell: (k) => <StateBadge status={k.is_active ? 'active' : 'inactive'} />,
    },
    {
      id: 'who',
      title: t('share.who'),
      width: 'minmax(180px, 2fr)',
      sort: 'user_id',
      cell: (k) => <span title={k.user_id}>{k.user_id}</span>,
    },
    { id: 'policy', title: t('user.policy'), width: '140px', wide: true, sort: 'resource_policy', cell: (k) => k.resource_policy },
    { id: 'used', title: t('keypair.used'), width: '130px', wide: true, sort: 'last_used', cell: (k) => <Ago at={k.last_used} /> },
    {
      id: 'n',
      title: t('keypair.requests'),
      width: '100px',
      num: true,
      wide: true,
      sort: 'num_queries',
      cell: (k) => k.num_queries?.toLocaleString() ?? dash,
    },
    { id: 'since', title: t('user.since'), width: '120px', wide: true, sort: 'created_at', cell: (k) => <Ago at={k.created_at} /> },
  ]
  return (
    <div className="page">
      <PageHead title={t('nav.keypairs')} sub={<span>{t('keypair.text')}</span>}>
        <Button variant="filled" leftSection={<Icon name="plus" />} onClick={() => setOpen('new')}>
          {t('keypair.new')}
        </Button>
      </PageHead>
      <div className="row wrap">
        {statuses.map((s) => (
          <button
            key={s}
            type="button"
            className="chip"
            aria-pressed={(search.status ?? 'active') === s}
            onClick={() => set({ status: s === 'active' ? undefined : s } as Partial<typeof search>)}>
            {s === 'all' ? t('filter.all') : t(`status.${s}` as Word)}
          </button>
        ))}
        <SearchField label={t('keypair.find')} value={search.q} onFind={(q) => set({ q } as Partial<typeof search>)} />
      </div>
      <div className="panel">
        <DataTable
          label={t('nav.keypairs')}
          columns={columns}
          total={paged.total}
          row={paged.row}
          rowKey={(k) => k.access_key}
          onRange={paged.onRange}
          error={paged.error}
          retry={paged.retry}
          onOpen={setOpen}
          order={order}
          onOrder={(o) => set({ order: o } as Partial<typeof search>)}
          empty={
            <EmptyState
              title={t('keypair.none')}
              cli="berth keypair list"
              action={
                search.q || search.status ? (
                  <Button
                    onClick={() => {
                      void go({ search: {} })
                    }}>
                    {t('filter.clear')}
                  </Button>
                ) : undefined
              }
            />
          }
        />
      </div>
      <Modal
        opened={open !== null}
        onClose={() => setOpen(null)}
        title={open === 'new' ? t('keypair.new') : (open?.access_key ?? '')}
        size={560}>
        {open !== null && (
          <KeypairForm key={open === 'new' ? 'new' : open.access_key} of={open === 'new' ? null : open} onDone={() => setOpen(null)} />
        )}
      </Modal>
    </div>
  )
}

function KeypairForm({ of: k, onDone }: { of: Keypair | null; onDone: () => void }) {
  const client = useQueryClient()
  const [email, setEmail] = useState<string | null>(k?.user_id ?? null)
  const [policy, setPolicy] = useState(k?.resource_policy ?? 'default')
  const [rate, setRate] = useState<number | string>(k?.rate_limit ?? 30000)
  const [active, setActive] = useState(k?.is_active ?? true)
  const [busy, setBusy] = useState(false)
  const [error, setError] = useState<unknown>(null)
  const [made, setMade] = useState<{ access_key: string; secret_key: string } | null>(null)
  const [ask, setAsk] = useState(false)
  const done = () => client.invalidateQueries({ queryKey: ['tenancy'] })
  const submit = async (e: FormEvent) => {
    e.preventDefault()
    setBusy(true)
    setError(null)
    const props = { is_active: active, resource_policy: policy, rate_limit: Number(rate) || 0 }
    try {
      if (k) await modifyKeypair(k.access_key, props)
      else if (email !== null) setMade((await createKeypair(email, { ...props, is_admin: false })).create_keypair.keypair)
      await done()
      if (k) onDone()
    } catch (err) {
      setError(err)
    } finally {
      setBusy(false)
    }
  }
  if (made) {
    return (
      <div className="stack">
        <p>{t('keypair.made', { email: email ?? '' })}</p>
        {[made.access_key, made.secret_key].map((v, i) => (
          <div key={v} className="stack tight">
            <span className="small soft">{t(i ? 'keypair.secret' : 'keypair.key')}</span>
            <div className="cli">
              <code>{v}</code>
              <Copy text={v} />
            </div>
          </div>
        ))}
        <div className="row">
          <Button variant="filled" className="end" onClick={onDone}>
            {t('do.close')}
          </Button>
        </div>
      </div>
    )
  }
  return (
    <form className="stack" onSubmit={(e) => void submit(e)}>
      {!k && <Picker label={t('share.who')} of={userChoices} value={email} onChange={setEmail} required autofocus />}
      <div className="row wrap top">
        <Picker label={t('user.policy')} of={policyChoices} value={policy} onChange={(v) => setPolicy(v ?? policy)} className="grow" />
        <NumberInput label={t('keypair.rate')} value={rate} onChange={setRate} min={1} max={1_000_000} className="grow" required />
      </div>
      <Switch label={t('keypair.active')} checked={active} onChange={(e) => setActive(e.currentTarget.checked)} />
      {error !== null && <ErrorState error={error} />}
      <div className="row">
        {k && !k.is_main && <Button onClick={() => setAsk(true)}>{t('keypair.delete')}</Button>}
        <span className="end row">
          <Button onClick={onDone}>{t('do.cancel')}</Button>
          <Button type="submit" variant="filled" loading={busy}>
            {k ? t('do.save') : t('keypair.create')}
          </Button>
        </span>
      </div>
      {k && (
        <ConfirmAction
          open={ask}
          onClose={() => setAsk(false)}
          title={t('keypair.delete')}
          verb={t('keypair.delete')}
          doing={t('do.deleting')}
          onDo={async () => {
            await deleteKeypair(k.access_key)
            await done()
            onDone()
          }}>
          {t('keypair.delete.text', { key: k.access_key })}
        </ConfirmAction>
      )}
    </form>
  )
}
