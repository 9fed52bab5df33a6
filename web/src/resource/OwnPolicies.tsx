import { Button, Modal, NumberInput, TextInput } from '@mantine/core'
import { useQueryClient } from '@tanstack/react-query'
import { useState, type FormEvent } from 'react'
import { bytes } from '@/design/amounts'
import { PagedTable, type Column } from '@/design/DataTable'
import { ConfirmAction, EmptyState, ErrorState } from '@/design/parts'
import { t, type Word } from '@/words'
import { createOwnPolicy, deleteOwnPolicy, listOwnPolicies, modifyOwnPolicy, type OwnPolicy, type OwnerKind } from './queries'

const GiB = 2 ** 30
type Field = 'max_vfolder_count' | 'max_quota_scope_size' | 'max_concurrent_logins' | 'max_customized_image_count' | 'max_network_count'

/** The limits of each kind; `none` is what lifts one, in the wire's words. */
const fields: Record<OwnerKind, { field: Field; word: Word; none: number; size?: boolean }[]> = {
  user: [
    { field: 'max_vfolder_count', word: 'policy.folders', none: 0 },
    { field: 'max_quota_scope_size', word: 'policy.quota', none: -1, size: true },
    { field: 'max_concurrent_logins', word: 'policy.logins', none: 0 },
    { field: 'max_customized_image_count', word: 'policy.images', none: 0 },
  ],
  project: [
    { field: 'max_vfolder_count', word: 'policy.folders', none: 0 },
    { field: 'max_quota_scope_size', word: 'policy.quota', none: -1, size: true },
    { field: 'max_network_count', word: 'policy.networks', none: 0 },
  ],
}
const unlimited = (n: number | null | undefined) => n === null || n === undefined || n <= 0

interface Props {
  of: OwnerKind
  find: string | undefined
  making: boolean
  onMade: () => void
}

export function OwnPolicies({ of, find, making, onMade }: Props) {
  const [open, setOpen] = useState<OwnPolicy | null>(null)
  const shown = making ? 'new' : open
  const close = () => {
    setOpen(null)
    onMade()
  }
  const columns: Column<OwnPolicy>[] = [
    { id: 'name', title: t('col.name'), width: 'minmax(160px, 2fr)', cell: (p) => <strong className="cut">{p.name}</strong> },
    ...fields[of].map((f): Column<OwnPolicy> => ({
      id: f.field,
      title: t(f.size ? 'policy.quota.col' : f.word),
      width: 'minmax(120px, 1fr)',
      num: true,
      wide: f.field !== 'max_vfolder_count',
      cell: (p) => {
        const v = p[f.field]
        return unlimited(v) ? <span className="dim">{t('policy.nolimit')}</span> : f.size ? bytes(v) : v
      },
    })),
  ]
  return (
    <>
      <div className="panel">
        <PagedTable
          of={['resource', 'ownPolicies', of, find ?? '']}
          load={(l, o, s) => listOwnPolicies(of, find, l, o, s)}
          label={t(`policy.tab.${of}`)}
          columns={columns}
          rowKey={(p) => p.name}
          onOpen={setOpen}
          empty={<EmptyState title={t(find ? 'find.none' : 'policy.none')} cli={`berth policy create --kind ${of} NAME`} />}
        />
      </div>
      <Modal opened={shown !== null} onClose={close} title={shown === 'new' ? t('policy.new') : (shown?.name ?? '')}>
        {shown !== null && <OwnPolicyForm kind={of} of={shown === 'new' ? null : shown} onDone={close} />}
      </Modal>
    </>
  )
}

function OwnPolicyForm({ kind, of: p, onDone }: { kind: OwnerKind; of: OwnPolicy | null; onDone: () => void }) {
  const client = useQueryClient()
  const [name, setName] = useState('')
  const [values, setValues] = useState<Record<string, number | string>>(() =>
    Object.fromEntries(fields[kind].map((f) => [f.field, unlimited(p?.[f.field]) ? '' : Number(p?.[f.field]) / (f.size ? GiB : 1)])),
  )
  const [busy, setBusy] = useState(false)
  const [error, setError] = useState<unknown>(null)
  const [ask, setAsk] = useState(false)
  const done = () => client.invalidateQueries({ queryKey: ['resource'] })
  const submit = (e: FormEvent) => {
    e.preventDefault()
    setBusy(true)
    setError(null)
    const props: Record<string, number> = {}
    for (const f of fields[kind]) {
      const v = values[f.field]
      const set = v === '' || v === undefined ? f.none : Math.round(Number(v) * (f.size ? GiB : 1))
      const was = p?.[f.field]
      // What was not touched is not written: nobody else's change is undone.
      if (!p ? set !== f.none : unlimited(was) ? set !== f.none : set !== Number(was)) props[f.field] = set
    }
    const work = p ? modifyOwnPolicy(kind, p.name, props) : createOwnPolicy(kind, name.trim(), props)
    work
      .then(done)
      .then(onDone, setError)
      .finally(() => setBusy(false))
  }
  return (
    <form className="stack" onSubmit={submit}>
      {!p && <TextInput label={t('col.name')} value={name} onChange={(e) => setName(e.currentTarget.value)} required data-autofocus />}
      <div className="grid2">
        {fields[kind].map((f) => (
          <NumberInput
            key={f.field}
            label={t(f.word)}
            value={values[f.field] ?? ''}
            onChange={(v) => setValues({ ...values, [f.field]: v })}
            min={1}
            placeholder={t('policy.nolimit')}
          />
        ))}
      </div>
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
            await deleteOwnPolicy(kind, p.name)
            await done()
            onDone()
          }}>
          {t('policy.delete.text', { name: p.name })}
        </ConfirmAction>
      )}
    </form>
  )
}
