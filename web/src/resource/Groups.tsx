import { Button, Modal, Select, Switch, TextInput } from '@mantine/core'
import { useQuery, useQueryClient } from '@tanstack/react-query'
import { Link } from '@tanstack/react-router'
import { useState, type FormEvent } from 'react'
import { order, slotName } from '@/design/amounts'
import { Icon } from '@/design/icons'
import { ErrorState, Facts, Meter, Panel, Skeleton } from '@/design/parts'
import { Picker } from '@/design/Picker'
import { domainChoices } from '@/tenancy/queries'
import { t, tAny } from '@/words'
import {
  createGroup,
  modifyGroup,
  offerGroup,
  resourceGroupsQuery,
  schedulerQuery,
  schedulingChoicesQuery,
  setScheduler,
  type SchedulerGroup,
} from './queries'

export function Groups() {
  const q = useQuery(schedulerQuery)
  const [edit, setEdit] = useState<SchedulerGroup | null>(null)
  const [making, setMaking] = useState(false)
  if (q.isError) return <ErrorState error={q.error} retry={() => void q.refetch()} />
  if (!q.data) return <Skeleton lines={4} h={30} />
  return (
    <div className="stack">
      <div className="row">
        <Button className="end" leftSection={<Icon name="plus" />} onClick={() => setMaking(true)}>
          {t('group.new')}
        </Button>
      </div>
      <div className="grid2">
        {q.data.scaling_groups.map((g) => (
          <Panel
            key={g.name}
            title={
              <span className="row">
                {g.name}
                {!g.is_active && <span className="tag">{t('status.inactive')}</span>}
              </span>
            }
            acts={
              <>
                {g.pending > 0 && (
                  <Link to="/admin/cluster" search={{ tab: 'queue', group: g.name }} className="small">
                    {t('group.queue')}
                  </Link>
                )}
                <Button size="compact-sm" aria-label={`${t('do.edit')}: ${g.name}`} onClick={() => setEdit(g)}>
                  {t('do.edit')}
                </Button>
              </>
            }>
            <div className="stack">
              {order(Object.keys(g.capacity)).map((s) => (
                <Meter key={s} slot={s} used={g.occupied[s] ?? '0'} of={g.capacity[s]} label={slotName(s)} />
              ))}
              <Facts
                of={[
                  [t('group.order'), g.scheduler],
                  [t('group.placement'), g.placement],
                  [
                    t('nav.agents'),
                    `${g.agents_alive}${g.agents_cordoned ? ` · ${t('group.cordoned', { n: g.agents_cordoned })}` : ''}${g.agents_lost ? ` · ${t('agent.lost', { n: g.agents_lost })}` : ''}`,
                  ],
                  [t('filter.running'), g.running],
                  [
                    t('filter.waiting'),
                    g.pending
                      ? `${g.pending} (${Object.entries(g.reasons)
                          .map(([r, n]) => `${n} ${tAny(`reason.${r}`, r)}`)
                          .join(', ')})`
                      : 0,
                  ],
                ]}
              />
              {g.warning && (
                <div className="note">
                  <Icon name="warn" />
                  <span>{g.warning}</span>
                </div>
              )}
            </div>
          </Panel>
        ))}
      </div>
      <Modal opened={making} onClose={() => setMaking(false)} title={t('group.new')}>
        <NewGroup onDone={() => setMaking(false)} />
      </Modal>
      <Modal opened={!!edit} onClose={() => setEdit(null)} title={edit?.name}>
        {edit && <GroupForm of={edit} onDone={() => setEdit(null)} />}
      </Modal>
    </div>
  )
}

function GroupForm({ of: g, onDone }: { of: SchedulerGroup; onDone: () => void }) {
  const client = useQueryClient()
  const choices = useQuery(schedulingChoicesQuery)
  const [by, setBy] = useState(g.scheduler)
  const [where, setWhere] = useState(g.placement)
  const of = useQuery(resourceGroupsQuery).data?.find((x) => x.name === g.name)
  const [offered, setOffered] = useState<boolean | null>(null)
  const [active, setActive] = useState(g.is_active)
  const [busy, setBusy] = useState(false)
  const [error, setError] = useState<unknown>(null)
  const save = () => {
    setBusy(true)
    setError(null)
    const props: Record<string, boolean> = {}
    if (active !== g.is_active) props['is_active'] = active
    if (of && offered !== null && offered !== of.is_public) props['is_public'] = offered
    const scheduling = by === g.scheduler && where === g.placement
    Promise.resolve(scheduling || setScheduler(g.name, { scheduler: by, scheduler_opts: { agent_selection_strategy: where } }))
      .then(() => Object.keys(props).length > 0 && modifyGroup(g.name, props))
      .then(() => client.invalidateQueries({ queryKey: ['resource'] }))
      .then(onDone, setError)
      .finally(() => setBusy(false))
  }
  return (
    <form
      className="stack"
      onSubmit={(e) => {
        e.preventDefault()
        save()
      }}>
      <Select
        label={t('group.order')}
        value={by}
        onChange={(v) => setBy(v ?? by)}
        data={choices.data?.orders ?? [by]}
        allowDeselect={false}
        description={t('group.when')}
      />
      <Select
        label={t('group.placement')}
        value={where}
        onChange={(v) => setWhere(v ?? where)}
        data={choices.data?.placements ?? [where]}
        allowDeselect={false}
      />
      <Switch label={t('group.active')} checked={active} onChange={(e) => setActive(e.currentTarget.checked)} />
      <Switch
        label={t('group.public')}
        checked={offered ?? of?.is_public ?? false}
        disabled={!of}
        onChange={(e) => setOffered(e.currentTarget.checked)}
      />
      {error !== null && <ErrorState error={error} />}
      <div className="row">
        <span className="end row">
          <Button onClick={onDone}>{t('do.cancel')}</Button>
          <Button type="submit" variant="filled" loading={busy}>
            {t('do.save')}
          </Button>
        </span>
      </div>
    </form>
  )
}

function NewGroup({ onDone }: { onDone: () => void }) {
  const client = useQueryClient()
  const [name, setName] = useState('')
  const [desc, setDesc] = useState('')
  const [offered, setOffered] = useState(true)
  const [domain, setDomain] = useState<string | null>('default')
  const [busy, setBusy] = useState(false)
  const [error, setError] = useState<unknown>(null)
  const submit = async (e: FormEvent) => {
    e.preventDefault()
    setBusy(true)
    setError(null)
    try {
      await createGroup(name.trim(), { description: desc, is_public: offered })
      if (domain) await offerGroup(name.trim(), domain)
      onDone()
    } catch (err) {
      setError(err)
    } finally {
      setBusy(false)
      await client.invalidateQueries({ queryKey: ['resource'] })
    }
  }
  return (
    <form className="stack" onSubmit={(e) => void submit(e)}>
      <TextInput
        label={t('col.name')}
        value={name}
        onChange={(e) => setName(e.currentTarget.value)}
        required
        maxLength={64}
        data-autofocus
      />
      <TextInput label={t('project.desc')} value={desc} onChange={(e) => setDesc(e.currentTarget.value)} />
      <Picker label={t('group.domain')} of={domainChoices(true)} value={domain} onChange={setDomain} clearable placeholder="–" />
      <Switch label={t('group.public')} checked={offered} onChange={(e) => setOffered(e.currentTarget.checked)} />
      {error !== null && <ErrorState error={error} />}
      <div className="row">
        <Button type="submit" variant="filled" className="end" loading={busy}>
          {t('group.create')}
        </Button>
      </div>
    </form>
  )
}
