import {
  Button,
  Checkbox,
  Modal,
  PasswordInput,
  SegmentedControl,
  Select,
  Tabs,
  Textarea,
  TextInput,
  useMantineColorScheme,
} from '@mantine/core'
import { useQuery } from '@tanstack/react-query'
import { getRouteApi, useNavigate } from '@tanstack/react-router'
import { useState, type FormEvent } from 'react'
import { Icon } from '@/design/icons'
import { Ago, Cli, ConfirmAction, Copy, EmptyState, PageHead, Panel, toast, useTitle } from '@/design/parts'
import { setLanguage, t, useLanguage, type Language } from '@/words'
import { useMe } from './me'
import { NoticeSettings } from './NoticeSettings'
import { Loaded, Secret, useDo } from './own'
import {
  beginTotp,
  createToken,
  deleteDotfile,
  dotfilesQuery,
  endLogin,
  endToken,
  endTotp,
  keypairsQuery,
  loginsQuery,
  makeSsh,
  rotateKeypair,
  saveDotfile,
  setFullName,
  setPassword,
  sshQuery,
  tokensQuery,
  totpQuery,
  verifyTotp,
} from './queries'

const route = getRouteApi('/profile')

export function ProfilePage() {
  const me = useMe()
  const tab = route.useSearch().tab ?? 'account'
  const go = useNavigate({ from: '/profile' })
  useTitle(t('nav.profile'))
  return (
    <div className="page form">
      <PageHead
        title={me.full_name || me.email}
        sub={
          <>
            <span>{me.email}</span>
            <span className="tag">{me.role}</span>
            <span>{me.domain_name}</span>
          </>
        }
      />
      <Tabs value={tab} onChange={(v) => void go({ search: v && v !== 'account' ? { tab: v } : {}, replace: true })}>
        <Tabs.List>
          <Tabs.Tab value="account">{t('profile.account')}</Tabs.Tab>
          <Tabs.Tab value="security">{t('profile.security')}</Tabs.Tab>
          <Tabs.Tab value="keys">{t('profile.keys')}</Tabs.Tab>
          <Tabs.Tab value="notices">{t('notify.tab')}</Tabs.Tab>
          <Tabs.Tab value="dotfiles">{t('profile.dotfiles')}</Tabs.Tab>
        </Tabs.List>
      </Tabs>
      {tab === 'account' && <Account />}
      {tab === 'security' && (
        <>
          <Password />
          <Totp />
          <Logins />
        </>
      )}
      {tab === 'keys' && (
        <>
          <Keypairs />
          <Tokens />
          <Ssh />
        </>
      )}
      {tab === 'notices' && <NoticeSettings />}
      {tab === 'dotfiles' && <Dotfiles />}
    </div>
  )
}

function Account() {
  const me = useMe()
  const lang = useLanguage()
  const { colorScheme, setColorScheme } = useMantineColorScheme()
  const [name, setName] = useState(me.full_name)
  const act = useDo()
  return (
    <>
      <Panel title={t('profile.name')}>
        <form
          className="stack"
          onSubmit={(e) => {
            e.preventDefault()
            void act.run(() => setFullName(name.trim()))
          }}>
          <TextInput label={t('profile.fullname')} value={name} onChange={(e) => setName(e.currentTarget.value)} maxLength={64} />
          {act.shown}
          <Button className="self-start" type="submit" variant="filled" loading={act.busy} disabled={name.trim() === me.full_name}>
            {t('do.save')}
          </Button>
        </form>
      </Panel>
      <Panel title={t('profile.look')}>
        <div className="stack">
          <div className="row wrap">
            <span className="soft w-120">{t('profile.theme')}</span>
            <SegmentedControl
              size="xs"
              value={colorScheme}
              onChange={(v) => setColorScheme(v as 'auto')}
              data={(['auto', 'light', 'dark'] as const).map((v) => ({ value: v, label: t(`theme.${v}`) }))}
              aria-label={t('profile.theme')}
            />
          </div>
          <div className="row wrap">
            <span className="soft w-120">{t('profile.language')}</span>
            <SegmentedControl
              size="xs"
              value={lang}
              onChange={(v) => setLanguage(v as Language)}
              data={[
                { value: 'en', label: 'English' },
                { value: 'ko', label: '한국어' },
              ]}
              aria-label={t('profile.language')}
            />
          </div>
        </div>
      </Panel>
    </>
  )
}

function Password() {
  const [old, setOld] = useState('')
  const [fresh, setFresh] = useState('')
  const act = useDo()
  const submit = (e: FormEvent) => {
    e.preventDefault()
    void act.run(async () => {
      const r = await setPassword(old, fresh)
      if (r?.error_msg) throw new Error(r.error_msg)
      setOld('')
      setFresh('')
      toast(t('profile.password.done'))
    })
  }
  return (
    <Panel title={t('login.password')}>
      <form className="stack" onSubmit={submit}>
        <PasswordInput
          label={t('profile.password.old')}
          value={old}
          onChange={(e) => setOld(e.currentTarget.value)}
          required
          autoComplete="current-password"
        />
        <PasswordInput
          label={t('login.password.new')}
          value={fresh}
          onChange={(e) => setFresh(e.currentTarget.value)}
          required
          autoComplete="new-password"
        />
        {act.shown}
        <Button className="self-start" type="submit" variant="filled" loading={act.busy}>
          {t('profile.password.do')}
        </Button>
      </form>
    </Panel>
  )
}

function Totp() {
  const q = useQuery(totpQuery)
  const act = useDo()
  const [begun, setBegun] = useState<{ totp_key: string; totp_uri: string } | null>(null)
  const [otp, setOtp] = useState('')
  const [codes, setCodes] = useState<string[]>([])
  const [off, setOff] = useState(false)
  return (
    <Panel title={t('profile.totp')}>
      <Loaded of={q}>
        {(d) => (
          <div className="stack">
            {codes.length > 0 && (
              <div className="note info">
                <Icon name="key" />
                <div className="stack tight">
                  <strong>{t('totp.codes.title')}</strong>
                  <span>{t('totp.codes.text')}</span>
                  <code>{codes.join('  ')}</code>
                  <span>
                    <Copy text={codes.join('\n')}>{t('do.copy')}</Copy>
                  </span>
                </div>
              </div>
            )}
            {d.totp_activated ? (
              <div className="row wrap">
                <span className="grow">{t('profile.totp.on', { n: d.recovery_codes })}</span>
                {!d.required && <Button onClick={() => setOff(true)}>{t('profile.totp.off')}</Button>}
              </div>
            ) : begun ? (
              <form
                className="stack"
                onSubmit={(e) => {
                  e.preventDefault()
                  void act.run(async () => {
                    const r = await verifyTotp(otp.replace(/\s/g, ''))
                    setCodes(r.recovery_codes ?? [])
                    setBegun(null)
                    setOtp('')
                  })
                }}>
                <p className="soft">{t('profile.totp.add')}</p>
                <div className="cli">
                  <code>{begun.totp_key}</code>
                  <Copy text={begun.totp_key} />
                </div>
                <a href={begun.totp_uri}>{t('login.enrol.open')}</a>
                <TextInput
                  label={t('login.otp')}
                  value={otp}
                  onChange={(e) => setOtp(e.currentTarget.value)}
                  inputMode="numeric"
                  autoComplete="one-time-code"
                  required
                  w={200}
                />
                <Button className="self-start" type="submit" variant="filled" loading={act.busy}>
                  {t('profile.totp.do')}
                </Button>
              </form>
            ) : (
              <div className="row wrap">
                <span className="grow soft">{t('profile.totp.none')}</span>
                <Button variant="filled" loading={act.busy} onClick={() => void act.run(async () => setBegun(await beginTotp()))}>
                  {t('profile.totp.do')}
                </Button>
              </div>
            )}
            {act.shown}
          </div>
        )}
      </Loaded>
      <ConfirmAction
        open={off}
        onClose={() => setOff(false)}
        title={t('profile.totp.off')}
        verb={t('profile.totp.off')}
        doing={t('do.deleting')}
        onDo={() => endTotp().then(() => q.refetch())}>
        {t('profile.totp.off.text')}
      </ConfirmAction>
    </Panel>
  )
}

function Logins() {
  const q = useQuery(loginsQuery)
  const act = useDo()
  return (
    <Panel
      title={t('profile.logins')}
      body={false}
      acts={
        (q.data?.length ?? 0) > 1 && (
          <Button size="compact-sm" loading={act.busy} onClick={() => void act.run(() => endLogin('all'))}>
            {t('profile.logins.all')}
          </Button>
        )
      }>
      <div className="lines">
        {!q.data && (
          <div>
            <Loaded of={q}>{() => null}</Loaded>
          </div>
        )}
        {q.data?.map((l) => (
          <div key={l.id} className="row">
            <div className="grow">
              <div className="cut" title={l.agent}>
                {l.agent}
              </div>
              <div className="small dim">
                {l.address} · {t('profile.used')} <Ago at={l.last_used} />
              </div>
            </div>
            <Button size="compact-sm" onClick={() => void act.run(() => endLogin(l.id))}>
              {t('profile.logins.end')}
            </Button>
          </div>
        ))}
        {act.shown && <div>{act.shown}</div>}
      </div>
    </Panel>
  )
}

function Keypairs() {
  const me = useMe()
  const q = useQuery(keypairsQuery(me.email))
  const act = useDo()
  const [made, setMade] = useState<{ access_key: string; secret_key: string } | null>(null)
  const [ask, setAsk] = useState(false)
  return (
    <Panel
      title={t('profile.keypairs')}
      body={false}
      acts={
        <Button size="compact-sm" onClick={() => setAsk(true)}>
          {t('profile.rotate')}
        </Button>
      }>
      <div className="lines">
        {made && (
          <div>
            <Secret
              rows={[
                [t('profile.access'), made.access_key],
                [t('profile.secret'), made.secret_key],
              ]}
            />
          </div>
        )}
        {!q.data && (
          <div>
            <Loaded of={q}>{() => null}</Loaded>
          </div>
        )}
        {q.data?.map((k) => (
          <div key={k.access_key} className="row wrap">
            <Copy text={k.access_key}>
              <code>{k.access_key}</code>
            </Copy>
            {k.is_main && <span className="tag">{t('profile.main')}</span>}
            {!k.is_active && <span className="tag">{t('status.inactive')}</span>}
            <span className="end small dim">
              {k.expires_at ? (
                <>
                  {t('profile.expires')} <Ago at={k.expires_at} />
                </>
              ) : (
                <>
                  {t('profile.used')} <Ago at={k.last_used} />
                </>
              )}
            </span>
          </div>
        ))}
        {act.shown && <div>{act.shown}</div>}
      </div>
      <ConfirmAction
        open={ask}
        onClose={() => setAsk(false)}
        title={t('profile.rotate')}
        verb={t('profile.rotate')}
        doing={t('profile.rotate')}
        danger={false}
        onDo={async () => {
          setMade((await rotateKeypair(86_400)).rotate_keypair.keypair)
          await q.refetch()
        }}>
        {t('profile.rotate.text')}
      </ConfirmAction>
    </Panel>
  )
}

function Tokens() {
  const q = useQuery(tokensQuery)
  const act = useDo()
  const [name, setName] = useState('')
  const [life, setLife] = useState('720h')
  const [readOnly, setReadOnly] = useState(false)
  const [made, setMade] = useState('')
  return (
    <Panel title={t('profile.tokens')} body={false}>
      <div className="lines">
        {made && (
          <div>
            <Secret rows={[[t('profile.token'), made]]} />
          </div>
        )}
        {!q.data && (
          <div>
            <Loaded of={q}>{() => null}</Loaded>
          </div>
        )}
        {q.data?.map((k) => (
          <div key={k.id} className="row wrap">
            <span className="grow">
              {k.name} {k.read_only && <span className="tag">{t('profile.readonly')}</span>}
              <span className="small dim block">
                {t('profile.used')} <Ago at={k.last_used} />
                {k.expires_at && (
                  <>
                    {' '}
                    · {t('profile.expires')} <Ago at={k.expires_at} />
                  </>
                )}
              </span>
            </span>
            <Button size="compact-sm" onClick={() => void act.run(() => endToken(k.id))}>
              {t('profile.revoke')}
            </Button>
          </div>
        ))}
        <form
          className="row wrap to-bottom"
          onSubmit={(e) => {
            e.preventDefault()
            void act.run(async () => {
              setMade((await createToken(name.trim(), life, readOnly)).token)
              setName('')
            })
          }}>
          <TextInput
            className="grow"
            label={t('profile.token.new')}
            value={name}
            onChange={(e) => setName(e.currentTarget.value)}
            required
          />
          <Select
            w={120}
            label={t('profile.expires')}
            value={life}
            onChange={(v) => setLife(v ?? '720h')}
            data={[
              { value: '24h', label: t('profile.day') },
              { value: '720h', label: t('profile.month') },
              { value: '8760h', label: t('profile.year') },
            ]}
            allowDeselect={false}
          />
          <Checkbox label={t('profile.readonly')} checked={readOnly} onChange={(e) => setReadOnly(e.currentTarget.checked)} pb={8} />
          <Button type="submit" h={36} loading={act.busy}>
            {t('profile.token.do')}
          </Button>
        </form>
        {act.shown && <div>{act.shown}</div>}
      </div>
    </Panel>
  )
}

function Ssh() {
  const q = useQuery(sshQuery)
  const act = useDo()
  const [made, setMade] = useState('')
  return (
    <Panel title={t('profile.ssh')}>
      <Loaded of={q}>
        {(d) => (
          <div className="stack">
            {made && <Secret rows={[[t('profile.private'), made]]} />}
            {d.ssh_public_key ? (
              <div className="cli">
                <code>{d.ssh_public_key}</code>
                <Copy text={d.ssh_public_key} />
              </div>
            ) : (
              <p className="soft">{t('profile.ssh.none')}</p>
            )}
            {act.shown}
            <div className="row wrap">
              <Button loading={act.busy} onClick={() => void act.run(async () => setMade((await makeSsh()).ssh_private_key))}>
                {d.ssh_public_key ? t('profile.ssh.again') : t('profile.ssh.do')}
              </Button>
            </div>
            <Cli line="berth ssh-config --write --include" />
          </div>
        )}
      </Loaded>
    </Panel>
  )
}

function Dotfiles() {
  const q = useQuery(dotfilesQuery)
  const act = useDo()
  const [edit, setEdit] = useState<{ path: string; data: string; permission: string; fresh: boolean } | null>(null)
  const [gone, setGone] = useState('')
  return (
    <Panel
      title={t('profile.dotfiles')}
      body={false}
      acts={
        <Button size="compact-sm" onClick={() => setEdit({ path: '', data: '', permission: '644', fresh: true })}>
          {t('profile.dotfile.new')}
        </Button>
      }>
      {!q.data ? (
        <div className="body">
          <Loaded of={q}>{() => null}</Loaded>
        </div>
      ) : q.data.length === 0 ? (
        <EmptyState title={t('profile.dotfiles.none')} text={t('profile.dotfiles.text')} />
      ) : (
        <div className="lines">
          {q.data.map((f) => (
            <div key={f.path} className="row">
              <code className="grow">~/{f.path}</code>
              <span className="dim small">{f.permission}</span>
              <Button size="compact-sm" onClick={() => setEdit({ ...f, fresh: false })}>
                {t('do.edit')}
              </Button>
              <button type="button" className="iconbtn" aria-label={t('do.remove.what', { what: f.path })} onClick={() => setGone(f.path)}>
                <Icon name="trash" />
              </button>
            </div>
          ))}
        </div>
      )}
      <Modal
        opened={!!edit}
        onClose={() => setEdit(null)}
        title={edit?.fresh ? t('profile.dotfile.new') : `~/${edit?.path ?? ''}`}
        size={640}>
        {edit && (
          <form
            className="stack"
            onSubmit={(e) => {
              e.preventDefault()
              void act.run(async () => {
                await saveDotfile(edit.path, edit.data, edit.permission, edit.fresh)
                setEdit(null)
              })
            }}>
            <div className="row top">
              {edit.fresh && (
                <TextInput
                  className="grow"
                  label={t('file.path')}
                  placeholder=".bashrc"
                  value={edit.path}
                  onChange={(e) => setEdit({ ...edit, path: e.currentTarget.value })}
                  required
                  data-autofocus
                />
              )}
              <TextInput
                label={t('file.mode')}
                value={edit.permission}
                onChange={(e) => setEdit({ ...edit, permission: e.currentTarget.value })}
                pattern="[0-7]{3}"
                required
                w={100}
              />
            </div>
            <Textarea
              label={t('profile.dotfile.data')}
              value={edit.data}
              onChange={(e) => setEdit({ ...edit, data: e.currentTarget.value })}
              autosize
              minRows={8}
              maxRows={20}
              classNames={{ input: 'codefield' }}
            />
            {act.shown}
            <div className="row to-end">
              <Button onClick={() => setEdit(null)}>{t('do.cancel')}</Button>
              <Button type="submit" variant="filled" loading={act.busy}>
                {t('do.save')}
              </Button>
            </div>
          </form>
        )}
      </Modal>
      <ConfirmAction
        open={!!gone}
        onClose={() => setGone('')}
        title={t('do.remove.what', { what: gone })}
        verb={t('profile.dotfile.delete')}
        doing={t('do.deleting')}
        onDo={() => deleteDotfile(gone).then(() => q.refetch())}>
        {t('profile.dotfile.delete.text')}
      </ConfirmAction>
    </Panel>
  )
}
