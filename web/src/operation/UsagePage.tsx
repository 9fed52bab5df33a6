import { Button, Modal, NumberInput, Select, Tabs, TextInput } from '@mantine/core'
import { useQuery, useQueryClient } from '@tanstack/react-query'
import { getRouteApi, useNavigate } from '@tanstack/react-router'
import { useState, type FormEvent } from 'react'
import type { UsagePrice, UsageReport, UsageRow } from '@/api/types'
import { isMemory, order, slotName } from '@/design/amounts'
import { Listing, type Column } from '@/design/DataTable'
import { Icon } from '@/design/icons'
import { Ago, ConfirmAction, EmptyState, ErrorState, PageHead, useTitle } from '@/design/parts'
import { among, Picker } from '@/design/Picker'
import { csvRow, saveText } from '@/design/save'
import { exact } from '@/design/time'
import { schedulerQuery, slotsQuery } from '@/resource/queries'
import { isSuper, useMe } from '@/tenancy/me'
import { t, type Word } from '@/words'
import { pricesQuery, removePrice, seriesQuery, setPrice, usageQuery } from './queries'
import { months, periodOf, rounded, seriesCSV } from './trend'
import { UsageTrend } from './UsageTrend'

const route = getRouteApi('/admin/usage')
const groupings = ['project', 'user', 'domain', 'resource-group'] as const

/** A report for spreadsheets: exact hours, a column for each resource. */
export function reportCSV(r: UsageReport): string {
  const slots = slotsOf(r)
  const costs = r.rows.some((row) => row.cost)
  const head = [r.by, 'key', 'domain_name', ...slots.map((s) => `${s}_hours`), ...(costs ? ['cost'] : [])]
  const lines = r.rows.map((row) =>
    csvRow([row.name, row.key, row.domain_name ?? '', ...slots.map((s) => hoursOf(row, s) ?? ''), ...(costs ? [row.cost ?? ''] : [])]),
  )
  return csvRow(head) + lines.join('')
}

const slotsOf = (r: UsageReport) => order([...new Set(r.rows.flatMap((row) => row.slots.map((s) => s.slot)))])
const hoursOf = (row: UsageRow, slot: string) => row.slots.find((s) => s.slot === slot)?.hours

const round = (n: string | undefined | null) => (n === undefined || n === null ? <span className="dim">–</span> : rounded(n))

export function UsagePage() {
  const me = useMe()
  const search = route.useSearch()
  const go = useNavigate({ from: '/admin/usage' })
  const tab = search.tab === 'prices' && isSuper(me) ? 'prices' : search.tab === 'trend' ? 'trend' : 'report'
  useTitle(t('nav.usage'))
  const choices = months(new Date())
  if (tab === 'trend') choices.splice(1, 0, { value: 'year', label: t('usage.year') })
  const month = choices.some((m) => m.value === search.month) ? search.month! : choices[0]!.value
  const span = periodOf(month, new Date())
  const by = groupings.find((g) => g === search.by) ?? 'project'
  const q = useQuery({ ...usageQuery(month, by), enabled: tab === 'report' })
  const trend = useQuery({ ...seriesQuery(span.query, span.step, by), enabled: tab === 'trend' })
  const [making, setMaking] = useState(false)
  const set = (part: Partial<typeof search>) => void go({ search: (old) => ({ ...old, ...part }), replace: true })
  return (
    <div className="page">
      <PageHead title={t('nav.usage')} sub={<span>{t('usage.text')}</span>}>
        {tab === 'report' ? (
          <Button
            leftSection={<Icon name="download" />}
            disabled={!q.data?.rows.length}
            onClick={() => q.data && saveText(`usage-${month}-${by}.csv`, reportCSV(q.data))}>
            {t('usage.csv')}
          </Button>
        ) : tab === 'trend' ? (
          <Button
            leftSection={<Icon name="download" />}
            disabled={!trend.data?.reports.some((r) => r.rows.length)}
            onClick={() => trend.data && saveText(`usage-${month}-${by}-by-${span.step}.csv`, seriesCSV(trend.data))}>
            {t('usage.csv')}
          </Button>
        ) : (
          <Button variant="filled" leftSection={<Icon name="plus" />} onClick={() => setMaking(true)}>
            {t('price.new')}
          </Button>
        )}
      </PageHead>
      <Tabs value={tab} onChange={(v) => void go({ search: v && v !== 'report' ? { tab: v } : {}, replace: true })}>
        <Tabs.List>
          <Tabs.Tab value="report">{t('usage.report')}</Tabs.Tab>
          <Tabs.Tab value="trend">{t('usage.overtime')}</Tabs.Tab>
          {isSuper(me) && <Tabs.Tab value="prices">{t('usage.prices')}</Tabs.Tab>}
        </Tabs.List>
      </Tabs>
      {tab === 'prices' ? (
        <Prices making={making} onMade={() => setMaking(false)} />
      ) : (
        <>
          <div className="row wrap">
            {groupings.map((g) => (
              <button
                key={g}
                type="button"
                className="chip"
                aria-pressed={by === g}
                onClick={() => set({ by: g === 'project' ? undefined : g, of: undefined } as Partial<typeof search>)}>
                {t(`usage.by.${g}` as Word)}
              </button>
            ))}
            <Select
              size="xs"
              w={140}
              className="end"
              aria-label={t('usage.month')}
              data={choices}
              value={month}
              allowDeselect={false}
              onChange={(v) => set({ month: v && v !== choices[0]!.value ? v : undefined } as Partial<typeof search>)}
            />
          </div>
          {tab === 'trend' ? (
            <UsageTrend
              by={by}
              series={trend.data}
              error={trend.error}
              retry={() => void trend.refetch()}
              figure={search.figure}
              one={search.of}
              cli={month === 'year' ? `berth usage report --by ${by}` : `berth usage report --month ${month} --by ${by}`}
              set={(part) => set(part as Partial<typeof search>)}
            />
          ) : (
            <div className="panel">
              <Listing<UsageRow>
                label={t('usage.report')}
                columns={reportColumns(by, q.data)}
                rows={q.data?.rows}
                rowKey={(r) => r.key}
                error={q.error}
                retry={() => void q.refetch()}
                empty={<EmptyState title={t('usage.none')} cli={`berth usage report --month ${month} --by ${by}`} />}
                foot={
                  q.data && (
                    <>
                      <span>{q.data.cost ? t('usage.total', { n: Number(q.data.cost).toLocaleString() }) : t('usage.noprice')}</span>
                      <span className="end">{t('usage.until', { at: exact(q.data.now) })}</span>
                    </>
                  )
                }
              />
            </div>
          )}
        </>
      )}
    </div>
  )
}

function reportColumns(by: string, r: UsageReport | undefined): Column<UsageRow>[] {
  const out: Column<UsageRow>[] = [
    {
      id: 'name',
      title: t(`usage.by.${by}` as Word),
      width: 'minmax(180px, 2fr)',
      cell: (row) => <span title={row.key}>{row.name || row.key}</span>,
    },
  ]
  if (by !== 'domain' && by !== 'resource-group')
    out.push({ id: 'domain', title: t('user.domain'), width: '130px', wide: true, cell: (row) => row.domain_name ?? '' })
  for (const s of r ? slotsOf(r) : ['cpu', 'mem'])
    out.push({
      id: s,
      title: t(isMemory(s) ? 'usage.gibh' : 'usage.hours', { slot: slotName(s) }),
      width: '140px',
      num: true,
      wide: s !== 'cpu',
      cell: (row) => round(hoursOf(row, s)),
    })
  if (r?.rows.some((row) => row.cost))
    out.push({ id: 'cost', title: t('usage.cost'), width: '120px', num: true, cell: (row) => round(row.cost) })
  return out
}

function Prices({ making, onMade }: { making: boolean; onMade: () => void }) {
  const client = useQueryClient()
  const q = useQuery(pricesQuery)
  const [remove, setRemove] = useState<UsagePrice | null>(null)
  const again = () => client.invalidateQueries({ queryKey: ['operation'] })
  const columns: Column<UsagePrice>[] = [
    { id: 'slot', title: t('price.slot'), width: 'minmax(120px, 1fr)', cell: (p) => slotName(p.slot) },
    {
      id: 'group',
      title: t('about.group'),
      width: 'minmax(120px, 1fr)',
      wide: true,
      cell: (p) => p.resource_group || <span className="dim">{t('preset.every')}</span>,
    },
    { id: 'price', title: t('price.hour'), width: '150px', num: true, cell: (p) => p.per_hour },
    { id: 'from', title: t('price.from'), width: '150px', cell: (p) => <Ago at={p.valid_from} /> },
    {
      id: 'do',
      title: '',
      width: '120px',
      cell: (p) => (
        <Button size="compact-sm" onClick={() => setRemove(p)}>
          {t('price.remove')}
        </Button>
      ),
    },
  ]
  return (
    <div className="panel">
      <Listing<UsagePrice>
        label={t('usage.prices')}
        columns={columns}
        rows={q.data}
        rowKey={(p) => p.id ?? ''}
        error={q.error}
        retry={() => void q.refetch()}
        empty={<EmptyState title={t('price.none')} text={t('price.none.text')} cli="berth usage price set cpu 0.04" />}
      />
      <Modal opened={making} onClose={onMade} title={t('price.new')}>
        <PriceForm
          onDone={() => {
            void again()
            onMade()
          }}
        />
      </Modal>
      <ConfirmAction
        open={remove !== null}
        onClose={() => setRemove(null)}
        title={t('price.remove')}
        verb={t('price.remove')}
        doing={t('do.deleting')}
        onDo={async () => {
          if (remove?.id) await removePrice(remove.id)
          await again()
        }}>
        {t('price.remove.text')}
      </ConfirmAction>
    </div>
  )
}

function PriceForm({ onDone }: { onDone: () => void }) {
  const slots = useQuery(slotsQuery)
  const groups = useQuery(schedulerQuery)
  const [slot, setSlot] = useState('cpu')
  const [group, setGroup] = useState<string | null>(null)
  const [price, setPriceText] = useState<number | string>('')
  const [from, setFrom] = useState(new Date().toISOString().slice(0, 8) + '01')
  const [busy, setBusy] = useState(false)
  const [error, setError] = useState<unknown>(null)
  const submit = (e: FormEvent) => {
    e.preventDefault()
    setBusy(true)
    setError(null)
    setPrice({ slot, resource_group: group ?? '', per_hour: String(price), valid_from: `${from}T00:00:00Z` })
      .then(onDone, setError)
      .finally(() => setBusy(false))
  }
  return (
    <form className="stack" onSubmit={submit}>
      <div className="row wrap top">
        <Select
          label={t('price.slot')}
          value={slot}
          onChange={(v) => setSlot(v ?? slot)}
          data={order([...new Set(['cpu', 'mem', ...Object.keys(slots.data ?? {})])]).map((s) => ({
            value: s,
            label: slotName(s) + (isMemory(s) ? ' (GiB)' : ''),
          }))}
          allowDeselect={false}
          className="grow"
        />
        <NumberInput
          label={t('price.hour')}
          value={price}
          onChange={setPriceText}
          min={0}
          decimalScale={6}
          required
          className="grow"
          data-autofocus
        />
      </div>
      <div className="row wrap top">
        <Picker
          label={t('about.group')}
          of={among(
            'groups',
            (groups.data?.scaling_groups ?? []).map((g) => g.name),
          )}
          value={group}
          onChange={setGroup}
          placeholder={t('preset.every')}
          clearable
          className="grow"
        />
        <TextInput
          type="date"
          label={t('price.from')}
          value={from}
          onChange={(e) => setFrom(e.currentTarget.value)}
          required
          className="grow"
        />
      </div>
      {error !== null && <ErrorState error={error} />}
      <div className="row">
        <Button type="submit" variant="filled" className="end" loading={busy}>
          {t('price.set')}
        </Button>
      </div>
    </form>
  )
}
