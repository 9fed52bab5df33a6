import { Button, Modal, Switch, TextInput } from '@mantine/core'
import { useQueryClient } from '@tanstack/react-query'
import { useState, type FormEvent } from 'react'
import { Icon } from '@/design/icons'
import { Cli, Copy, ErrorState } from '@/design/parts'
import { t } from '@/words'
import { appTitle } from './AppButton'
import { changeCircuit, circuitsQuery, closeCircuit, type Circuit } from './queries'

/** Who may use an app that is open: oneself, named people, everybody with the link. */
export function AppShare({
  open,
  onClose,
  session,
  name,
  of: c,
}: {
  open: boolean
  onClose: () => void
  session: string
  name: string
  of: Circuit
}) {
  const client = useQueryClient()
  const [email, setEmail] = useState('')
  const [busy, setBusy] = useState(false)
  const [error, setError] = useState<unknown>(null)
  const app = appTitle(c.app)
  const doing = (p: Promise<unknown>) => {
    setBusy(true)
    setError(null)
    return p
      .then(() => setEmail(''), setError)
      .then(() => client.invalidateQueries({ queryKey: circuitsQuery(session).queryKey }))
      .finally(() => setBusy(false))
  }
  const add = (e: FormEvent) => {
    e.preventDefault()
    if (!busy) void doing(changeCircuit(c.id, { shared_users: [...c.shared_users, email.trim()] }))
  }
  return (
    <Modal opened={open} onClose={onClose} title={t('appshare.title', { app })} size={520}>
      <div className="stack">
        <div className="cli">
          <code>{c.url}</code>
          <Copy text={c.url} label={t('apps.copy')} />
        </div>
        <form className="row to-bottom" onSubmit={add}>
          <TextInput
            type="email"
            className="grow"
            label={t('appshare.who')}
            value={email}
            onChange={(e) => setEmail(e.currentTarget.value)}
            required
            data-autofocus
          />
          <Button type="submit" variant="filled" h={36} loading={busy}>
            {t('appshare.add')}
          </Button>
        </form>
        <p className="small dim">{t('appshare.text', { app })}</p>
        {error !== null && <ErrorState error={error} />}
        {c.shared_users.length > 0 && <span className="section-title">{t('appshare.with')}</span>}
        {c.shared_users.map((u) => (
          <div key={u} className="row">
            <Icon name="user" />
            <span className="grow cut">{u}</span>
            <Button
              size="compact-sm"
              aria-label={t('do.remove.what', { what: u })}
              onClick={() => void doing(changeCircuit(c.id, { shared_users: c.shared_users.filter((x) => x !== u) }))}>
              {t('share.take')}
            </Button>
          </div>
        ))}
        <Switch
          label={t('appshare.public')}
          description={t('appshare.public.text', { app })}
          checked={c.public}
          disabled={busy}
          onChange={(e) => void doing(changeCircuit(c.id, { public: e.currentTarget.checked }))}
        />
        <Cli line={`berth app share ${name} ${c.app} --user EMAIL`} />
        <div className="row">
          <span className="small dim grow">{t('appshare.revoke.text', { app })}</span>
          <Button color="red.8" variant="filled" loading={busy} onClick={() => void doing(closeCircuit(c.id)).then(onClose)}>
            {t('apps.revoke')}
          </Button>
        </div>
      </div>
    </Modal>
  )
}
