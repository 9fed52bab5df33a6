import { Button, Checkbox, TextInput } from '@mantine/core'
import { useQuery } from '@tanstack/react-query'
import { useState } from 'react'
import { Ago, Cli, ConfirmAction, Panel, toast } from '@/design/parts'
import { t, tAny } from '@/words'
import { Loaded, Secret, useDo } from './own'
import {
  deliveriesQuery,
  noticePreferencesQuery,
  setNoticePreferences,
  tryNotice,
  type Delivery,
  type PreferenceChange,
  type Preferences,
} from './queries'

/** Where one hears of what beside this page, and what became of it. */
export function NoticeSettings() {
  const q = useQuery(noticePreferencesQuery)
  // It stays where it is while what it came with is read anew.
  const [secret, setSecret] = useState('')
  return (
    <>
      {secret && <Secret rows={[[t('notify.secret'), secret]]} />}
      <Loaded of={q}>{(p) => <Wishes of={p} onSecret={setSecret} />}</Loaded>
      <Sent />
    </>
  )
}

function Wishes({ of: p, onSecret }: { of: Preferences; onSecret: (secret: string) => void }) {
  const act = useDo()
  const test = useDo()
  const [email, setEmail] = useState(p.email_kinds)
  const [url, setUrl] = useState(p.webhook_url)
  const [hook, setHook] = useState(p.webhook_kinds)
  const [ask, setAsk] = useState(false)
  const address = url.trim()
  const wanted: PreferenceChange = { email_kinds: email, webhook_url: address, webhook_kinds: address ? hook : [] }
  const same = alike(email, p.email_kinds) && address === p.webhook_url && alike(wanted.webhook_kinds, p.webhook_kinds)
  const save = async (change: PreferenceChange) => {
    const now = await setNoticePreferences(change)
    setHook(now.webhook_kinds)
    // The secret of a webhook that is gone is of no use to anybody.
    if (now.webhook_secret || !now.webhook_url) onSecret(now.webhook_secret ?? '')
  }
  const send = (channel: string) =>
    void test.run(async () => {
      await tryNotice(channel)
      toast(t('notify.test.sent'))
    })
  const kinds = p.kinds.map((k) => <Checkbox key={k} value={k} label={tAny(`notify.kind.${k}`, k)} />)
  return (
    <>
      <form
        className="stack"
        onSubmit={(e) => {
          e.preventDefault()
          void act.run(async () => {
            await save(wanted)
            toast(t('notify.saved'))
          })
        }}>
        <Panel
          title={t('notify.email')}
          acts={
            <Button size="compact-sm" disabled={!!p.no_email} loading={test.busy} onClick={() => send('email')}>
              {t('notify.test')}
            </Button>
          }>
          <div className="stack">
            <p className="small soft">{p.no_email ? t('notify.nomail') : t('notify.email.to', { email: p.email })}</p>
            <Checkbox.Group value={email} onChange={setEmail}>
              <fieldset className="stack tight bare pad-0" aria-label={t('notify.email')}>
                {kinds}
              </fieldset>
            </Checkbox.Group>
          </div>
        </Panel>
        <Panel
          title={t('notify.webhook')}
          acts={
            <Button size="compact-sm" disabled={!p.webhook_url} loading={test.busy} onClick={() => send('webhook')}>
              {t('notify.test')}
            </Button>
          }>
          <div className="stack">
            <TextInput
              type="url"
              label={t('notify.url')}
              description={t('notify.url.text')}
              placeholder="https://"
              value={url}
              maxLength={2048}
              onChange={(e) => setUrl(e.currentTarget.value)}
            />
            <Checkbox.Group value={address ? hook : []} onChange={setHook}>
              <fieldset className="stack tight bare pad-0" aria-label={t('notify.webhook')} disabled={!address}>
                {kinds}
              </fieldset>
            </Checkbox.Group>
            {p.webhook_url && (
              <Button className="self-start" size="compact-sm" onClick={() => setAsk(true)}>
                {t('notify.secret.new')}
              </Button>
            )}
          </div>
        </Panel>
        {act.shown}
        {test.shown}
        <Button className="self-start" type="submit" variant="filled" loading={act.busy} disabled={same}>
          {t('do.save')}
        </Button>
      </form>
      <ConfirmAction
        open={ask}
        onClose={() => setAsk(false)}
        title={t('notify.secret.new')}
        verb={t('notify.secret.new')}
        doing={t('notify.secret.new')}
        danger={false}
        onDo={() => save({ email_kinds: p.email_kinds, webhook_url: p.webhook_url, webhook_kinds: p.webhook_kinds, new_secret: true })}>
        {t('notify.secret.text')}
      </ConfirmAction>
    </>
  )
}

const alike = (a: string[], b: string[]) => a.length === b.length && a.every((k) => b.includes(k))

const most = 20

function Sent() {
  const q = useQuery(deliveriesQuery)
  return (
    <Panel title={t('notify.last')} body={false}>
      <div className="lines">
        {!q.data && (
          <div>
            <Loaded of={q}>{() => null}</Loaded>
          </div>
        )}
        {q.data?.length === 0 && (
          <div className="stack">
            <span className="soft">{t('notify.last.none')}</span>
            <Cli line="berth notice list" />
          </div>
        )}
        {q.data?.slice(0, most).map((d) => (
          <Line key={d.id + d.channel} of={d} />
        ))}
      </div>
    </Panel>
  )
}

function Line({ of: d }: { of: Delivery }) {
  return (
    <div className="row wrap">
      <span className="grow">
        {d.kind === 'test' ? t('notify.kind.test') : d.text}
        {d.state !== 'sent' && d.error && (
          <span className={`small block ${d.state === 'failed' ? 'bad' : 'soft'}`}>
            {d.error} ({t('notify.attempts', { n: d.attempts })})
          </span>
        )}
      </span>
      <span className="tag">{tAny(`notify.channel.${d.channel}`, d.channel)}</span>
      <span className="small">{tAny(`notify.state.${d.state}`, d.state)}</span>
      <span className="small dim">
        <Ago at={d.at} />
      </span>
    </div>
  )
}
