import { Button, Modal, Select, TextInput } from '@mantine/core'
import { useQuery, useQueryClient } from '@tanstack/react-query'
import { useState, type FormEvent } from 'react'
import { Icon } from '@/design/icons'
import { Cli, ErrorState } from '@/design/parts'
import { t, tAny } from '@/words'
import { invite, sentQuery, setShare, sharesQuery, type FolderDetail } from './queries'

/** Who has a folder, and who else is to have it. */
export function ShareDialog({ open, onClose, of: f }: { open: boolean; onClose: () => void; of: FolderDetail }) {
  const client = useQueryClient()
  const shares = useQuery({ ...sharesQuery(f.id), enabled: open })
  const sent = useQuery({ ...sentQuery, enabled: open })
  const [email, setEmail] = useState('')
  const [perm, setPerm] = useState('ro')
  const [busy, setBusy] = useState(false)
  const [error, setError] = useState<unknown>(null)
  const rights = ['ro', 'rw', 'wd'].map((v) => ({ value: v, label: tAny(`perm.${v}`) }))
  const doing = (p: Promise<unknown>) => {
    setBusy(true)
    setError(null)
    return p.then(() => client.invalidateQueries({ queryKey: ['folder'] }), setError).finally(() => setBusy(false))
  }
  const submit = (e: FormEvent) => {
    e.preventDefault()
    void doing(
      invite(f.id, perm, [email.trim()]).then((r) => {
        if (!r.invited_ids.length) throw new Error(t('share.nobody', { email }))
        setEmail('')
      }),
    )
  }
  const waiting = (sent.data ?? []).filter((i) => i.vfolder_id.replace(/-/g, '') === f.id && i.state === 'pending')
  return (
    <Modal opened={open} onClose={onClose} title={t('share.title', { name: f.name })} size={520}>
      <form className="stack" onSubmit={submit}>
        <div className="row to-bottom">
          <TextInput
            type="email"
            label={t('share.who')}
            className="grow"
            value={email}
            onChange={(e) => setEmail(e.currentTarget.value)}
            required
            data-autofocus
          />
          <Select label={t('folder.right')} data={rights} value={perm} onChange={(v) => setPerm(v ?? 'ro')} w={160} allowDeselect={false} />
          <Button type="submit" variant="filled" h={36} loading={busy}>
            {t('share.do')}
          </Button>
        </div>
        <p className="small dim">{t(`share.${perm as 'ro'}.text`)}</p>
        {error !== null && <ErrorState error={error} />}
        {(shares.data ?? []).map((s) => (
          <div key={s.shared_to.uuid} className="row">
            <Icon name="user" />
            <span className="grow cut">{s.shared_to.email}</span>
            <Select
              size="xs"
              w={140}
              data={rights}
              value={s.perm}
              allowDeselect={false}
              aria-label={t('share.right.of', { who: s.shared_to.email })}
              onChange={(v) => v && void doing(setShare(f.id, s.shared_to.uuid, v))}
            />
            <Button size="compact-sm" onClick={() => void doing(setShare(f.id, s.shared_to.uuid, null))}>
              {t('share.take')}
            </Button>
          </div>
        ))}
        {waiting.map((i) => (
          <div key={i.id} className="row soft">
            <Icon name="s-waiting" />
            <span className="grow cut">{i.invitee}</span>
            <span className="small">{t('share.waiting')}</span>
          </div>
        ))}
        <Cli line={`berth folder invite ${f.name} ${email || 'EMAIL'}`} />
      </form>
    </Modal>
  )
}
