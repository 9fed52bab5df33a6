import { Button, Modal, TextInput } from '@mantine/core'
import { useQuery, useQueryClient } from '@tanstack/react-query'
import { getRouteApi, useNavigate } from '@tanstack/react-router'
import { useState, type FormEvent } from 'react'
import { mutate } from '@/api/http'
import { bytes, slotAmount, slotName } from '@/design/amounts'
import { DataTable, type Column } from '@/design/DataTable'
import { Icon } from '@/design/icons'
import { usePaged } from '@/design/paged'
import { Ago, Cli, Copy, EmptyState, ErrorState, Facts, PageHead, useTitle } from '@/design/parts'
import { SearchField } from '@/design/SearchField'
import { isSuper, useMe } from '@/tenancy/me'
import { t } from '@/words'
import { ImageMark } from './ImageMark'
import { appsOf, imageFilter, imageQuery, label, listImages, referenceOf, type Image } from './queries'

const route = getRouteApi('/images')

const columns = (start: (i: Image) => void): Column<Image>[] => [
  {
    id: 'name',
    title: t('col.name'),
    width: 'minmax(220px, 2fr)',
    sort: 'name',
    cell: (i) => (
      <span className="row">
        <ImageMark name={i.name} />
        <span className="cut" title={referenceOf(i)}>
          {i.humanized_name || i.name} <span className="dim">{i.tag}</span>
        </span>
      </span>
    ),
  },
  {
    id: 'apps',
    title: t('apps.title'),
    width: 'minmax(120px, 1fr)',
    wide: true,
    cell: (i) => appsOf(i).join(', ') || <span className="dim">–</span>,
  },
  {
    id: 'alias',
    title: t('image.alias'),
    width: 'minmax(100px, 1fr)',
    wide: true,
    cell: (i) => i.aliases.join(', ') || <span className="dim">–</span>,
  },
  { id: 'arch', title: t('image.arch'), width: '100px', wide: true, sort: 'architecture', cell: (i) => i.architecture },
  {
    id: 'size',
    title: t('col.size'),
    width: '100px',
    num: true,
    wide: true,
    sort: 'size_bytes',
    cell: (i) => (Number(i.size_bytes) > 0 ? bytes(i.size_bytes) : '–'),
  },
  {
    id: 'there',
    title: t('image.installed'),
    width: '140px',
    wide: true,
    cell: (i) => (i.installed ? t('image.there') : <span className="dim">{t('image.pulled')}</span>),
  },
  {
    id: 'go',
    title: '',
    width: '110px',
    cell: (i) => (
      <Button
        size="compact-sm"
        h={26}
        onClick={(e) => {
          e.stopPropagation()
          start(i)
        }}>
        {t('image.start')}
      </Button>
    ),
  },
]

export function ImagesPage() {
  const search = route.useSearch()
  const go = useNavigate({ from: '/images' })
  useTitle(t('nav.images'))
  const filter = imageFilter(search.q)
  const order = search.order ?? 'name'
  const paged = usePaged<Image>(['image', 'list', filter, order], (l, o, s) => listImages(filter, order, l, o, s))
  const [open, setOpen] = useState<Image | null>(null)
  const set = (part: Partial<typeof search>) => void go({ search: (old) => ({ ...old, ...part }), replace: true })
  const start = (i: Image) => void go({ to: '/sessions/new', search: { image: referenceOf(i) } })
  return (
    <div className="page">
      <PageHead title={t('nav.images')}>
        <SearchField label={t('images.find')} value={search.q} onFind={(q) => set({ q } as Partial<typeof search>)} />
      </PageHead>
      <div className="panel">
        <DataTable
          label={t('nav.images')}
          columns={columns(start)}
          total={paged.total}
          row={paged.row}
          rowKey={(i) => i.id}
          onRange={paged.onRange}
          onOpen={setOpen}
          order={order}
          onOrder={(o) => set({ order: o })}
          error={paged.error}
          retry={paged.retry}
          empty={
            <EmptyState
              title={search.q ? t('images.nomatch') : t('image.none')}
              text={search.q ? '' : t('image.none.text')}
              cli="berth image list"
            />
          }
        />
      </div>
      <Modal opened={!!open} onClose={() => setOpen(null)} title={open ? referenceOf(open) : ''} size={560}>
        {open && <Detail of={open} start={() => start(open)} />}
      </Modal>
    </div>
  )
}

function Detail({ of: i, start }: { of: Image; start: () => void }) {
  const me = useMe()
  const client = useQueryClient()
  const [alias, setAlias] = useState('')
  const [error, setError] = useState<unknown>(null)
  const used = useQuery(imageQuery(i.id)).data?.last_used_at
  const add = (e: FormEvent) => {
    e.preventDefault()
    setError(null)
    mutate('mutation($a: String!, $t: String!, $r: String) { alias_image(alias: $a, target: $t, architecture: $r) { ok msg } }', {
      a: alias.trim(),
      t: referenceOf(i),
      r: i.architecture,
    }).then(() => {
      setAlias('')
      return client.invalidateQueries({ queryKey: ['image'] })
    }, setError)
  }
  return (
    <div className="stack">
      <Facts
        of={[
          [
            t('image.reference'),
            <Copy key="r" text={referenceOf(i)}>
              <code>{referenceOf(i)}</code>
            </Copy>,
          ],
          [t('image.alias'), i.aliases.join(', ') || '–'],
          [t('image.arch'), i.architecture],
          [t('image.registry'), i.registry],
          [t('col.size'), Number(i.size_bytes) > 0 ? bytes(i.size_bytes) : '–'],
          [t('apps.title'), appsOf(i).join(', ') || '–'],
          [t('image.distro'), label(i, 'ai.backend.base-distro') || '–'],
          [
            t('image.needs'),
            i.resource_limits
              .filter((l) => l.min && l.min !== '0')
              .map((l) => `${slotAmount(l.key, l.min)} ${l.key === 'mem' ? '' : slotName(l.key)}`)
              .join(', ') || '–',
          ],
          [t('image.used'), <Ago key="u" at={used} />],
        ]}
      />
      <Cli line={`berth run ${i.aliases[0] ?? referenceOf(i)}`} />
      {isSuper(me) && (
        <form className="row" onSubmit={add}>
          <TextInput
            size="xs"
            className="grow"
            placeholder={t('image.newalias')}
            aria-label={t('image.newalias')}
            value={alias}
            onChange={(e) => setAlias(e.currentTarget.value)}
            required
          />
          <Button type="submit">{t('image.addalias')}</Button>
        </form>
      )}
      {error !== null && <ErrorState error={error} />}
      <Button variant="filled" onClick={start} leftSection={<Icon name="play" size={14} />}>
        {t('image.start.this')}
      </Button>
    </div>
  )
}
