import { ActionIcon, Button, NumberInput, Slider, Switch, Textarea, TextInput } from '@mantine/core'
import { useDebouncedValue } from '@mantine/hooks'
import { keepPreviousData, useQuery } from '@tanstack/react-query'
import { getRouteApi, useNavigate } from '@tanstack/react-router'
import { useEffect, useMemo, useRef, useState } from 'react'
import { amount, bytes, isMemory, order, slotAmount, slotLine, slotName } from '@/design/amounts'
import { CopyAsMenu } from '@/design/CopyAs'
import { Icon } from '@/design/icons'
import { Cli, ErrorState, FreeTrack, KeyHint, Meter, PageHead, Skeleton, useTitle } from '@/design/parts'
import { among, Picker } from '@/design/Picker'
import { clock } from '@/design/time'
import { foldersQuery } from '@/folder/queries'
import { ImageMark } from '@/image/ImageMark'
import { appsOf, canBatch, imageChoicesQuery, imageQuery, label, referenceOf, type Image } from '@/image/queries'
import type { Page } from '@/design/paged'
import { groupsForQuery, presetsQuery, type Preset } from '@/resource/queries'
import { useProject } from '@/tenancy/me'
import { t, type Word } from '@/words'
import { blank, bodyOf, cliOf, draftFrom, faultsOf, nameFor, slotsOf, type Draft } from './draft'
import { createSession, dryRun, sessionInfoQuery, sessionQuery } from './queries'
import { isChosen, partsOf } from './parts'
import { SaveTemplate } from './SaveTemplate'
import { draftOf, sessionDocument, templatesQuery } from './templates'
import './new.css'

const route = getRouteApi('/sessions/new')
const GiB = 1 << 30
const lastKept = 'berth.last'
/** The alias of the image that a first session is made of. */
const usual = 'python'
/** Images that are shown before somebody asks for all; the chosen one is among them. */
const few = 6

/** Image and size of the last start: most people start the same again. */
function last(): { image?: string; preset?: string } {
  try {
    return JSON.parse(localStorage.getItem(lastKept) ?? '{}') as { image?: string; preset?: string }
  } catch {
    return {}
  }
}

export function NewSessionPage() {
  const search = route.useSearch()
  const go = useNavigate()
  const project = useProject()
  useTitle(t('session.new'))
  const [d, setDraft] = useState<Draft>(() => ({ ...blank, name: nameFor(Math.random()) }))
  const change = (part: Partial<Draft>) => setDraft((old) => ({ ...old, ...part }))
  const [find, setFind] = useState('')
  const [looked] = useDebouncedValue(find.trim(), 200)
  const images = useQuery(imageChoicesQuery(looked))
  const wanted = search.image ?? last().image ?? usual
  const preferred = useQuery({ ...imageQuery(wanted), retry: false })
  const groups = useQuery(groupsForQuery(project))
  const presets = useQuery(presetsQuery(project, d.group || undefined))
  const from = useQuery({ ...sessionQuery(search.from ?? ''), enabled: !!search.from, refetchInterval: false })
  const fromInfo = useQuery({ ...sessionInfoQuery(search.from ?? ''), enabled: !!search.from })
  const folders = useQuery(foldersQuery)
  const mountable = useMemo(
    () =>
      among(
        'folders',
        (folders.data ?? [])
          .filter((f) => f.status === 'ready' && !d.mounts.some((m) => m.id === f.id))
          .map((f) => ({ value: f.id, label: f.name })),
      ),
    [folders.data, d.mounts],
  )
  const template = useQuery({ ...templatesQuery, enabled: !!search.template })
  const [tried, setTried] = useState(false)
  const [busy, setBusy] = useState(false)
  const [error, setError] = useState<unknown>(null)
  const filled = useRef(false)

  // What is preselected: the session that this is a copy of, what the address says, or what was used last.
  useEffect(() => {
    if (filled.current || !images.data || !presets.data || preferred.isPending) return
    if (search.from) {
      if (!from.data || !fromInfo.data) return
      filled.current = true
      change(draftFrom(from.data, fromInfo.data))
      return
    }
    if (search.template) {
      if (!template.data || !folders.data) return
      const found = template.data.find((x) => x.id === search.template)
      const document = found && sessionDocument(found)
      if (document) {
        filled.current = true
        change(draftOf(document, folders.data))
        return
      }
    }
    filled.current = true
    const image = preferred.data ?? images.data.items.find((i) => i.aliases.includes(usual)) ?? images.data.items[0]
    const preset =
      presets.data.presets.find((p) => p.name === last().preset && p.allocatable) ??
      presets.data.presets.find((p) => p.name === 'small') ??
      presets.data.presets[0]
    change({
      ...(image ? { image: referenceOf(image), architecture: image.architecture } : {}),
      ...(preset ? { preset: preset.name, slots: slotsOf(preset.resource_slots) } : {}),
    })
  }, [images.data, presets.data, preferred.data, preferred.isPending, search, from.data, fromInfo.data, template.data, folders.data])
  const wantedFolder = search.folder
  useEffect(() => {
    const f = folders.data?.find((x) => x.id === wantedFolder)
    if (f)
      setDraft((old) =>
        old.mounts.some((m) => m.id === f.id) ? old : { ...old, mounts: [...old.mounts, { id: f.id, name: f.name, target: '' }] },
      )
  }, [folders.data, wantedFolder])

  const chosen = useQuery({ ...imageQuery(d.image), enabled: !!d.image, retry: false })
  const image = images.data?.items.find((i) => referenceOf(i) === d.image) ?? chosen.data ?? undefined
  const faults = faultsOf(d)
  const shown = (k: keyof typeof faults) => (tried && faults[k] ? t(faults[k] as Word) : undefined)
  const sent = useMemo(() => bodyOf({ ...d, name: 'dry-run-check' }, project), [d, project])
  const [asked] = useDebouncedValue(sent, 250)
  const checkable = !!asked.image && Object.keys(asked.config.resources).length > 0
  const dry = useQuery({
    queryKey: ['resource', 'dry', asked],
    enabled: checkable,
    retry: false,
    refetchInterval: 15_000,
    placeholderData: keepPreviousData,
    queryFn: ({ signal }) => dryRun(asked, signal),
  })

  const start = async () => {
    setTried(true)
    if (busy || Object.keys(faultsOf(d)).length) {
      document.querySelector<HTMLElement>('[aria-invalid="true"]')?.focus()
      return
    }
    setBusy(true)
    setError(null)
    try {
      const made = await createSession(bodyOf(d, project))
      try {
        localStorage.setItem(lastKept, JSON.stringify({ image: d.image, preset: d.preset }))
      } catch {
        // It is a convenience.
      }
      await go({ to: '/sessions/$id', params: { id: made.sessionId } })
    } catch (err) {
      setError(err)
      setBusy(false)
    }
  }
  const slots = order([...new Set([...Object.keys(presets.data?.scaling_group_remaining ?? {}), ...Object.keys(d.slots)])])
  const notDefault = [
    d.env.some((e) => e.name) && t('new.env'),
    d.clusterSize > 1 && t('new.cluster'),
    d.group && d.group !== groups.data?.[0] && t('about.group'),
    d.shm && t('about.shm'),
    d.priority !== null && t('about.priority'),
    d.bootstrap && t('new.bootstrap'),
  ]
    .filter(Boolean)
    .join(', ')
  const [more, setMore] = useState(false)
  return (
    <form
      className="page"
      onSubmit={(e) => {
        e.preventDefault()
        void start()
      }}
      onKeyDown={(e) => {
        if (e.key === 'Enter' && (e.metaKey || e.ctrlKey)) {
          e.preventDefault()
          void start()
        }
      }}>
      <PageHead title={t('session.new')} />
      <div className="cols new">
        <div className="stack wide">
          <section className="stack" aria-labelledby="new-image">
            <h2 className="section-title" id="new-image">
              {t('col.image')}
            </h2>
            {images.isError && <ErrorState error={images.error} retry={() => void images.refetch()} />}
            {images.isPending ? (
              <Skeleton lines={2} h={48} />
            ) : (
              images.data && (
                <ImagePicker
                  found={images.data}
                  chosen={image}
                  value={d.image}
                  q={find}
                  onFind={setFind}
                  onPick={(i) =>
                    change({ image: referenceOf(i), architecture: i.architecture, ...(canBatch(i) ? {} : { type: 'interactive' }) })
                  }
                />
              )
            )}
            {shown('image') && <span className="small bad">{shown('image')}</span>}
          </section>

          <section className="stack" aria-labelledby="new-size">
            <h2 className="section-title" id="new-size">
              {t('new.size')}
            </h2>
            {presets.isError && <ErrorState error={presets.error} retry={() => void presets.refetch()} />}
            {presets.isPending ? (
              <Skeleton lines={1} h={60} />
            ) : (
              <div className="cards" role="radiogroup" aria-labelledby="new-size">
                {(presets.data?.presets ?? []).map((p: Preset) => (
                  <button
                    key={p.id}
                    type="button"
                    role="radio"
                    aria-checked={d.preset === p.name}
                    className="card"
                    onClick={() =>
                      change({ preset: p.name, slots: slotsOf(p.resource_slots), shm: p.shared_memory ? String(p.shared_memory) : '' })
                    }>
                    <strong>{p.name}</strong>
                    <span className="soft">{slotLine(p.resource_slots)}</span>
                    {!p.allocatable && <span className="small warn">{t('new.notnow')}</span>}
                  </button>
                ))}
                <button type="button" role="radio" aria-checked={d.preset === ''} className="card" onClick={() => change({ preset: '' })}>
                  <strong>{t('new.custom')}</strong>
                  <span className="soft">{slotLine(Object.fromEntries(Object.entries(d.slots).map(([k, v]) => [k, String(v)])))}</span>
                </button>
              </div>
            )}
            {partsOf(slots).map((f) => (
              <div key={f.family} className="row wrap" role="radiogroup" aria-label={f.name}>
                {f.choices.map((c) => (
                  <button
                    key={c.key}
                    type="button"
                    role="radio"
                    aria-checked={isChosen(c, d.slots)}
                    className="chip"
                    onClick={() => change({ preset: '', slots: { ...d.slots, ...c.slots } })}>
                    {c.words}
                  </button>
                ))}
              </div>
            ))}
            {d.preset === '' &&
              slots.map((s) => (
                <SlotSlider
                  key={s}
                  slot={s}
                  value={d.slots[s] ?? 0}
                  free={amount(presets.data?.scaling_group_remaining[s]) ?? null}
                  min={minOf(image, s)}
                  onChange={(n) => change({ slots: { ...d.slots, [s]: n } })}
                />
              ))}
          </section>

          <section className="stack" aria-labelledby="new-data">
            <h2 className="section-title" id="new-data">
              {t('nav.data')}
            </h2>
            <p className="small dim">{t('new.data.text')}</p>
            {d.mounts.map((m, i) => (
              <div key={m.id} className="row">
                <Icon name="folder" />
                <span className="cut w-160 fixed">{m.name}</span>
                <TextInput
                  size="xs"
                  className="grow"
                  aria-label={t('new.target', { name: m.name })}
                  placeholder={`/home/work/${m.name}`}
                  value={m.target}
                  onChange={(e) => {
                    const target = e.currentTarget.value
                    change({ mounts: d.mounts.map((x, j) => (j === i ? { ...x, target } : x)) })
                  }}
                />
                <ActionIcon
                  variant="subtle"
                  color="gray"
                  aria-label={t('do.remove.what', { what: m.name })}
                  onClick={() => change({ mounts: d.mounts.filter((_, j) => j !== i) })}>
                  <Icon name="close" />
                </ActionIcon>
              </div>
            ))}
            {shown('mounts') && <span className="small bad">{shown('mounts')}</span>}
            {folders.data && folders.data.filter((f) => f.status === 'ready').length > 0 ? (
              <Picker
                placeholder={t('new.addfolder')}
                aria-label={t('new.addfolder')}
                value={null}
                w={300}
                of={mountable}
                onChange={(id) => {
                  const f = folders.data.find((x) => x.id === id)
                  if (f) change({ mounts: [...d.mounts, { id: f.id, name: f.name, target: '' }] })
                }}
              />
            ) : (
              <p className="small soft">{t('new.nofolders')}</p>
            )}
          </section>

          <section className="stack" aria-labelledby="new-runs">
            <h2 className="section-title" id="new-runs">
              {t('new.runs')}
            </h2>
            <div className="cards" role="radiogroup" aria-labelledby="new-runs">
              {(['interactive', 'batch'] as const).map((k) => (
                <button
                  key={k}
                  type="button"
                  role="radio"
                  aria-checked={d.type === k}
                  className="card"
                  disabled={k === 'batch' && !!image && !canBatch(image)}
                  onClick={() => change({ type: k })}>
                  <strong>{t(`type.${k}`)}</strong>
                  <span className="soft">{t(`new.${k}.text` as Word)}</span>
                </button>
              ))}
            </div>
            {d.type === 'batch' && (
              <>
                <Textarea
                  label={t('about.command')}
                  autosize
                  minRows={2}
                  value={d.command}
                  onChange={(e) => change({ command: e.currentTarget.value })}
                  placeholder="python3 train.py"
                  error={shown('command')}
                  classNames={{ input: 'codefield' }}
                />
                <div className="row wrap top">
                  <TextInput
                    label={t('new.startsat')}
                    type="datetime-local"
                    value={d.startsAt}
                    onChange={(e) => change({ startsAt: e.currentTarget.value })}
                    w={220}
                  />
                  <TextInput
                    label={t('new.timeout')}
                    placeholder="2h"
                    value={d.timeout}
                    onChange={(e) => change({ timeout: e.currentTarget.value })}
                    w={160}
                  />
                </div>
              </>
            )}
          </section>

          <section className="stack">
            <button type="button" className="fold" aria-expanded={more} onClick={() => setMore(!more)}>
              <span className={`turner${more ? ' open' : ''}`}>
                <Icon name="chevron" size={12} />
              </span>
              <strong>{t('new.more')}</strong>
              <span className="dim cut">{notDefault || t('new.more.text')}</span>
            </button>
            {more && (
              <div className="stack inset">
                <span className="section-title">{t('new.env')}</span>
                {[...d.env, { name: '', value: '' }].map((e, i) => (
                  <div key={i} className="row">
                    <TextInput
                      size="xs"
                      aria-label={t('new.env.name')}
                      placeholder="NAME"
                      value={e.name}
                      w={200}
                      classNames={{ input: 'codefield' }}
                      onChange={(x) => {
                        const name = x.currentTarget.value
                        change({ env: put(d.env, i, { ...e, name }) })
                      }}
                    />
                    <TextInput
                      size="xs"
                      aria-label={t('new.env.value')}
                      placeholder="value"
                      value={e.value}
                      className="grow"
                      classNames={{ input: 'codefield' }}
                      onChange={(x) => {
                        const value = x.currentTarget.value
                        change({ env: put(d.env, i, { ...e, value }) })
                      }}
                    />
                    {i < d.env.length && (
                      <ActionIcon
                        variant="subtle"
                        color="gray"
                        aria-label={t('do.remove.what', { what: e.name })}
                        onClick={() => change({ env: d.env.filter((_, j) => j !== i) })}>
                        <Icon name="close" />
                      </ActionIcon>
                    )}
                  </div>
                ))}
                {shown('env') && <span className="small bad">{shown('env')}</span>}
                <div className="row wrap top">
                  <Picker
                    label={t('about.group')}
                    of={among('groups', groups.data ?? [])}
                    value={d.group || null}
                    placeholder={groups.data?.[0] ?? ''}
                    clearable
                    onChange={(v) => change({ group: v ?? '' })}
                    w={200}
                  />
                  <TextInput
                    label={t('about.shm')}
                    placeholder="64m"
                    value={d.shm}
                    onChange={(e) => change({ shm: e.currentTarget.value.trim() })}
                    w={120}
                  />
                  <NumberInput
                    label={t('about.priority')}
                    min={0}
                    max={100}
                    placeholder="10"
                    value={d.priority ?? ''}
                    onChange={(v) => change({ priority: v === '' ? null : Number(v) })}
                    w={120}
                  />
                </div>
                <div className="row wrap top to-bottom">
                  <NumberInput
                    label={t('new.clustersize')}
                    min={1}
                    max={64}
                    value={d.clusterSize}
                    onChange={(v) => change({ clusterSize: Math.max(1, Number(v) || 1) })}
                    w={160}
                  />
                  {d.clusterSize > 1 && (
                    <Switch
                      label={t('new.multinode')}
                      checked={d.clusterMode === 'multi-node'}
                      onChange={(e) => change({ clusterMode: e.currentTarget.checked ? 'multi-node' : 'single-node' })}
                      pb={8}
                    />
                  )}
                </div>
                <Textarea
                  label={t('new.bootstrap')}
                  description={t('new.bootstrap.text')}
                  autosize
                  minRows={2}
                  value={d.bootstrap}
                  onChange={(e) => change({ bootstrap: e.currentTarget.value })}
                  classNames={{ input: 'codefield' }}
                />
              </div>
            )}
          </section>
        </div>

        <aside className="panel sticky" aria-label={t('new.panel')}>
          <div className="body stack">
            <TextInput
              label={t('col.name')}
              value={d.name}
              onChange={(e) => change({ name: e.currentTarget.value })}
              error={shown('name')}
              spellCheck={false}
              name="session-name"
            />
            <div className="row">
              <ImageMark name={d.image} />
              <div className="grow">
                <div className="cut">{d.image || '–'}</div>
                <div className="small dim">
                  {slotLine(Object.fromEntries(Object.entries(d.slots).map(([k, v]) => [k, String(v)])))}
                  {d.clusterSize > 1 ? ` × ${d.clusterSize}` : ''}
                </div>
              </div>
            </div>
            <Verdict dry={dry} />
            {presets.data &&
              order(Object.keys(presets.data.scaling_group_remaining)).map((s) => {
                const free = amount(presets.data.scaling_group_remaining[s])
                const held = amount(presets.data.scaling_groups[d.group || groups.data?.[0] || '']?.using[s])
                if (free === null || !Number.isFinite(free) || held === null) return null
                return (
                  <Meter
                    key={s}
                    slot={s}
                    used={held}
                    of={held + free}
                    add={(d.slots[s] ?? 0) * d.clusterSize}
                    label={t('new.capacity', { slot: slotName(s) })}
                  />
                )
              })}
            {error !== null && <ErrorState error={error} />}
            {tried &&
              Object.values(faults).map((f) => (
                <span key={f} className="small bad">
                  {t(f as Word)}
                </span>
              ))}
            <Button
              type="submit"
              variant="filled"
              h={38}
              fullWidth
              loading={busy}
              leftSection={<Icon name="play" size={14} />}
              data-testid="start">
              {t('new.start')}
            </Button>
            <div className="small dim row to-center">
              <KeyHint keys="⌘/Ctrl Enter" />
            </div>
            <Cli line={cliOf(d)} />
            <div className="row wrap">
              <CopyAsMenu cli={cliOf(d)} api={{ method: 'POST', path: '/session', body: bodyOf(d, project) }} />
              <SaveTemplate of={d} />
            </div>
          </div>
        </aside>
      </div>
    </form>
  )
}

function put(env: Draft['env'], i: number, e: Draft['env'][number]) {
  const out = [...env]
  out[i] = e
  return out.filter((x, j) => x.name || x.value || j === i)
}

function minOf(i: Image | undefined, slot: string): number {
  return amount(i?.resource_limits.find((l) => l.key === slot)?.min) ?? 0
}

/** Says before anything is sent whether it would start, or why it would wait. */
function Verdict({
  dry,
}: {
  dry: {
    data: { waits: boolean; msg: string; estimate?: string | null; remedies?: string[]; placements?: { agent: string }[] } | undefined
    error: unknown
    isFetching: boolean
  }
}) {
  if (dry.error) return <ErrorState error={dry.error} />
  if (!dry.data)
    return (
      <div className="note sunken min-h-44">
        <Skeleton lines={1} />
      </div>
    )
  const v = dry.data
  if (!v.waits) {
    const where = [...new Set((v.placements ?? []).map((p) => p.agent))].join(', ')
    return (
      <div className="note good-soft" role="status">
        <Icon name="check" />
        <span>{where ? t('new.now.on', { where }) : t('new.now')}</span>
      </div>
    )
  }
  return (
    <div className="note" role="status">
      <Icon name="s-waiting" />
      <div className="stack tight grow">
        <span>{t('new.waits', { msg: v.msg })}</span>
        {v.estimate && <span className="soft">{t('wait.latest', { t: clock(v.estimate) })}</span>}
        {(v.remedies ?? []).map((r) => (
          <span key={r} className="soft">
            {t('new.remedy', { r })}
          </span>
        ))}
      </div>
    </div>
  )
}

interface Choices {
  found: Page<Image>
  chosen: Image | undefined
  value: string
  q: string
  onFind: (q: string) => void
  onPick: (i: Image) => void
}

/** What may be run: the images used last, or those that the search of the server finds. The chosen one is always among them. */
function ImagePicker({ found: page, chosen, value, q, onFind, onPick }: Choices) {
  const [all, setAll] = useState(false)
  const found = [...page.items]
  const at = found.findIndex((i) => referenceOf(i) === value)
  if (at >= few) found.unshift(...found.splice(at, 1))
  else if (at < 0 && chosen && !q) found.unshift(chosen)
  return (
    <>
      {(page.total > few || q) && (
        <TextInput
          type="search"
          placeholder={t('images.find')}
          aria-label={t('images.find')}
          value={q}
          onChange={(e) => onFind(e.currentTarget.value)}
          leftSection={<Icon name="search" size={14} />}
          w={300}
        />
      )}
      <div className="cards images" role="radiogroup" aria-labelledby="new-image">
        {found.slice(0, all || q ? found.length : few).map((i) => (
          <button
            key={i.id}
            type="button"
            role="radio"
            aria-checked={value === referenceOf(i)}
            className="card row"
            onClick={() => onPick(i)}
            title={`${referenceOf(i)} (${i.architecture})`}>
            <ImageMark name={i.name} size="large" />
            <span className="grow shrinks">
              <strong className="cut block">
                {i.humanized_name || i.name} <span className="dim">{i.tag}</span>
              </strong>
              <span className="small soft cut block">
                {appsOf(i).slice(0, 3).join(', ') ||
                  label(i, 'ai.backend.runtime-type') ||
                  (Number(i.size_bytes) > 0 ? bytes(i.size_bytes) : i.architecture)}
              </span>
            </span>
          </button>
        ))}
        {found.length === 0 && <span className="soft">{t('images.nomatch')}</span>}
      </div>
      {!all && !q && found.length > few && (
        <button type="button" className="chip self-start" onClick={() => setAll(true)}>
          {t('images.all', { n: found.length })}
        </button>
      )}
      {(all || q) && page.total > page.items.length && (
        <span className="small dim">{t('images.some', { n: page.items.length, of: page.total.toLocaleString() })}</span>
      )}
    </>
  )
}

/** An amount with what is free now drawn in the track. */
function SlotSlider({
  slot,
  value,
  free,
  min,
  onChange,
}: {
  slot: string
  value: number
  free: number | null
  min: number
  onChange: (n: number) => void
}) {
  const unit = isMemory(slot) ? GiB : 1
  const step = isMemory(slot) ? 0.25 : slot.endsWith('.shares') ? 0.1 : 1
  const most = Math.max(isMemory(slot) ? 4 : 2, Math.ceil((free ?? 0) / unit), Math.ceil(value / unit))
  const shown = value / unit
  const part = free === null || !Number.isFinite(free) ? 100 : Math.min(100, (free / unit / most) * 100)
  return (
    <div className="slot">
      <span className="small soft w-90">
        {slotName(slot)}
        {isMemory(slot) ? ' (GiB)' : ''}
      </span>
      <FreeTrack part={part}>
        <Slider
          value={shown}
          min={0}
          max={most}
          step={step}
          label={(n) => (isMemory(slot) ? `${n} GiB` : String(n))}
          thumbLabel={slotName(slot)}
          onChange={(n) => onChange(Math.max(min, Math.round(n * unit * 100) / 100))}
        />
        <span className="small dim">{t('new.free', { n: slotAmount(slot, free ?? undefined) })}</span>
      </FreeTrack>
      <NumberInput
        size="xs"
        w={84}
        min={0}
        step={step}
        decimalScale={2}
        value={shown}
        aria-label={slotName(slot)}
        onChange={(n) => onChange(Math.round((Number(n) || 0) * unit * 100) / 100)}
      />
    </div>
  )
}
