import { Button, Menu, Modal, Textarea, TextInput } from '@mantine/core'
import { useQuery, useQueryClient } from '@tanstack/react-query'
import { getRouteApi, useNavigate } from '@tanstack/react-router'
import { useEffect, useState, type FormEvent } from 'react'
import { slotLine } from '@/design/amounts'
import { CopyAs } from '@/design/CopyAs'
import { Listing, type Column } from '@/design/DataTable'
import { Icon } from '@/design/icons'
import { Ago, Cli, ConfirmAction, EmptyState, ErrorState, PageHead, Skeleton, toast, useTitle } from '@/design/parts'
import { ImageMark } from '@/image/ImageMark'
import { useProject } from '@/tenancy/me'
import { t, tAny } from '@/words'
import { nameFor } from './draft'
import {
  amountOf,
  createTemplate,
  deleteTemplate,
  kindOf,
  replaceTemplate,
  sessionDocument,
  startTemplate,
  templatesQuery,
  templateTextQuery,
  type Template,
  type TemplateKind,
} from './templates'

const route = getRouteApi('/templates')

const example = `apiVersion: "6"
kind: taskTemplate
metadata:
  name: my-template
spec:
  sessionType: interactive
  kernel:
    image: berth/python:3.11
    environ: {}
  resources:
    cpu: "1"
    mem: 1g
  mounts: {}
`

export function TemplatesPage() {
  const search = route.useSearch()
  const go = useNavigate({ from: '/templates' })
  const client = useQueryClient()
  useTitle(t('nav.templates'))
  const q = useQuery(templatesQuery)
  const [selected, setSelected] = useState<Set<string>>(new Set())
  const [asking, setAsking] = useState(false)
  const find = search.q ?? ''
  const all = q.data
  const rows = all?.filter((x) => x.name.toLowerCase().includes(find.toLowerCase()))
  const chosen = (all ?? []).filter((x) => selected.has(x.id))
  const look = () => client.invalidateQueries({ queryKey: templatesQuery.queryKey })
  const opened = all?.find((x) => x.id === search.open)
  const start = (x: Template) =>
    void startTemplate(x, nameFor(Math.random())).then(
      (s) => void go({ to: '/sessions/$id', params: { id: s.sessionId } }),
      (e: Error) => toast(e.message, undefined, 12_000),
    )
  const columns: Column<Template>[] = [
    {
      id: 'name',
      title: t('col.name'),
      width: 'minmax(180px, 2fr)',
      cell: (x) => (
        <span className="row">
          <ImageMark name={sessionDocument(x)?.spec.kernel?.image ?? x.name} />
          <button
            type="button"
            className="copy rowlink pad-0"
            title={x.name}
            onClick={() => void go({ search: (old) => ({ ...old, open: x.id }) })}>
            {x.name}
          </button>
        </span>
      ),
    },
    { id: 'kind', title: t('col.type'), width: '150px', wide: true, cell: (x) => tAny(`template.kind.${x.type}`, x.type) },
    {
      id: 'image',
      title: t('col.image'),
      width: 'minmax(120px, 1fr)',
      wide: true,
      cell: (x) => <span title={sessionDocument(x)?.spec.kernel?.image}>{sessionDocument(x)?.spec.kernel?.image ?? '–'}</span>,
    },
    {
      id: 'slots',
      title: t('col.resources'),
      width: 'minmax(120px, 1fr)',
      wide: true,
      cell: (x) =>
        slotLine(
          Object.fromEntries(Object.entries(sessionDocument(x)?.spec.resources ?? {}).map(([k, v]) => [k, String(amountOf(String(v)))])),
        ) || '–',
    },
    {
      id: 'who',
      title: t('folder.whose'),
      width: 'minmax(130px, 1fr)',
      wide: true,
      cell: (x) => (x.is_owner ? t('folder.ofproject', { name: x.group_name }) : t('template.theirs', { who: x.user_email })),
    },
    { id: 'created', title: t('col.created'), width: '120px', wide: true, cell: (x) => <Ago at={x.created_at} /> },
    {
      id: 'do',
      title: '',
      width: '160px',
      cell: (x) => (
        <span className="row to-end">
          {kindOf(x) === 'session' && (
            <Button size="compact-xs" onClick={() => void go({ to: '/sessions/new', search: { template: x.id } })}>
              {t('template.use')}
            </Button>
          )}
          <Button size="compact-xs" variant="filled" onClick={() => start(x)} aria-label={`${t('template.start')} ${x.name}`}>
            {t('template.start')}
          </Button>
          <Menu position="bottom-end">
            <Menu.Target>
              <button type="button" className="copy" aria-label={`${t('do.more')} ${x.name}`}>
                <Icon name="more" size={14} />
              </button>
            </Menu.Target>
            <Menu.Dropdown>
              <CopyAs
                cli={`berth template start ${x.name}`}
                api={{
                  method: 'POST',
                  path: `/session/_/${kindOf(x) === 'cluster' ? 'create-cluster' : 'create-from-template'}`,
                  body: { template_id: x.id, name: 'NAME', enqueueOnly: true },
                }}
              />
            </Menu.Dropdown>
          </Menu>
        </span>
      ),
    },
  ]
  const make = (
    <Button variant="filled" leftSection={<Icon name="plus" />} onClick={() => void go({ search: (old) => ({ ...old, open: 'new' }) })}>
      {t('template.new')}
    </Button>
  )
  return (
    <div className="page">
      <PageHead title={t('nav.templates')}>{make}</PageHead>
      {(all?.length ?? 0) > 8 && (
        <TextInput
          type="search"
          size="xs"
          w={220}
          placeholder={t('filter.name')}
          aria-label={t('filter.name')}
          value={find}
          onChange={(e) => {
            const v = e.currentTarget.value
            void go({ search: (old) => ({ ...old, q: v }), replace: true })
          }}
        />
      )}
      <div className="panel">
        <Listing
          label={t('nav.templates')}
          columns={columns}
          rows={rows}
          rowKey={(x) => x.id}
          error={q.error}
          retry={() => void q.refetch()}
          onOpen={(x) => void go({ search: (old) => ({ ...old, open: x.id }) })}
          selected={selected}
          onSelect={setSelected}
          bulk={
            <>
              <span>{t('table.selected', { n: selected.size })}</span>
              <Button size="compact-sm" variant="filled" color="red.8" onClick={() => setAsking(true)}>
                {t('template.delete', { n: selected.size })}
              </Button>
            </>
          }
          empty={
            <EmptyState title={t('template.none')} text={t('template.none.text')} action={make} cli="berth template create FILE.yaml" />
          }
        />
      </div>
      <ConfirmAction
        open={asking}
        onClose={() => setAsking(false)}
        title={t('template.delete', { n: chosen.length })}
        verb={t('template.delete', { n: chosen.length })}
        doing={t('do.deleting')}
        onDo={async () => {
          try {
            for (const x of chosen) await deleteTemplate(kindOf(x), x.id)
            setSelected(new Set())
          } finally {
            await look()
          }
        }}>
        {t('template.delete.loses', { names: chosen.map((x) => x.name).join(', ') })}
      </ConfirmAction>
      <Modal
        opened={search.open === 'new' || !!opened}
        onClose={() => void go({ search: (old) => (old.q ? { q: old.q } : {}) })}
        title={opened ? t('template.edit', { name: opened.name }) : t('template.new')}
        size={640}>
        <Editor
          key={search.open}
          of={opened ?? null}
          onDone={() => {
            void look()
            void go({ search: (old) => (old.q ? { q: old.q } : {}) })
          }}
        />
      </Modal>
    </div>
  )
}

function Editor({ of: x, onDone }: { of: Template | null; onDone: () => void }) {
  const project = useProject()
  const client = useQueryClient()
  const kind: TemplateKind = x ? kindOf(x) : 'session'
  const text = useQuery({ ...templateTextQuery(kind, x?.id ?? ''), enabled: !!x })
  const [value, setValue] = useState<string | null>(x ? null : example)
  const [busy, setBusy] = useState(false)
  const [error, setError] = useState<unknown>(null)
  useEffect(() => {
    if (text.data !== undefined) setValue((old) => old ?? text.data)
  }, [text.data])
  const mine = !x || x.is_owner
  const submit = (e: FormEvent) => {
    e.preventDefault()
    if (busy || value === null) return
    setBusy(true)
    setError(null)
    const asCluster = !x && /kind:\s*["']?clusterTemplate/.test(value)
    const done = x ? replaceTemplate(kind, x.id, value) : createTemplate(asCluster ? 'cluster' : 'session', value, project)
    done
      .then(() => {
        if (x) client.removeQueries({ queryKey: templateTextQuery(kind, x.id).queryKey })
        onDone()
      }, setError)
      .finally(() => setBusy(false))
  }
  if (text.isError) return <ErrorState error={text.error} retry={() => void text.refetch()} />
  if (value === null) return <Skeleton lines={8} />
  return (
    <form className="stack" onSubmit={submit}>
      <Textarea
        label={t('template.body')}
        description={t('template.body.text')}
        value={value}
        onChange={(e) => setValue(e.currentTarget.value)}
        readOnly={!mine}
        autosize
        minRows={12}
        maxRows={26}
        spellCheck={false}
        data-autofocus
        classNames={{ input: 'codefield' }}
      />
      {error !== null && <ErrorState error={error} />}
      <Cli line={x ? `berth template show ${x.name} > ${x.name}.yaml` : 'berth template create FILE.yaml'} />
      {mine && (
        <div className="row to-end">
          <Button type="submit" variant="filled" loading={busy}>
            {x ? t('do.save') : t('template.create')}
          </Button>
        </div>
      )}
    </form>
  )
}
