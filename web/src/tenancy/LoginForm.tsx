import { Anchor, Button, PasswordInput, TextInput } from '@mantine/core'
import { useQuery } from '@tanstack/react-query'
import { useEffect, useState, type FormEvent } from 'react'
import { Copy, ErrorState } from '@/design/parts'
import { Icon } from '@/design/icons'
import { t } from '@/words'
import { beginEnrol, finishEnrol, login, providersQuery, replacePassword, type LoginStep } from './login'

/** Asks who one is: name and password, then whatever else the cluster wants to know. It keeps what was typed. */
export function LoginForm({ as, onDone }: { as?: string; onDone: () => void }) {
  const [username, setUsername] = useState(as ?? '')
  const [password, setPassword] = useState('')
  const [otp, setOtp] = useState('')
  const [fresh, setFresh] = useState('')
  const [again, setAgain] = useState('')
  const [step, setStep] = useState<LoginStep | null>(null)
  const [error, setError] = useState<unknown>(null)
  const [busy, setBusy] = useState(false)
  const [enrolment, setEnrolment] = useState<{ totp_key: string; totp_uri: string } | null>(null)
  const [codes, setCodes] = useState<string[]>([])
  const providers = useQuery({ ...providersQuery, enabled: !as }).data?.items ?? []

  const doing = (work: () => Promise<void>) => {
    if (busy) return
    setBusy(true)
    setError(null)
    work()
      .catch(setError)
      .finally(() => setBusy(false))
  }
  const attempt = (force = false, pass = password) =>
    doing(async () => {
      const next = await login(username.trim(), pass, otp, force)
      if (next.kind === 'done') return onDone()
      if (next.kind === 'totp') setOtp('')
      setStep(next)
    })
  const token = step?.kind === 'enrol' ? step.token : ''
  useEffect(() => {
    if (token) beginEnrol(token).then(setEnrolment, setError)
  }, [token])

  const submit = (e: FormEvent) => {
    e.preventDefault()
    if (step?.kind === 'expired') {
      if (fresh !== again) return setError(new Error(t('login.password.differ')))
      return doing(async () => {
        const refused = await replacePassword(username.trim(), password, fresh)
        if (refused) throw new Error(refused)
        setPassword(fresh)
        setStep(null)
        const next = await login(username.trim(), fresh, '', false)
        if (next.kind === 'done') onDone()
        else setStep(next)
      })
    }
    if (step?.kind === 'enrol') {
      return doing(async () => {
        const r = await finishEnrol(token, otp)
        setOtp('')
        setCodes(r?.recovery_codes ?? [])
        setStep(null)
        setEnrolment(null)
      })
    }
    attempt(step?.kind === 'elsewhere')
  }

  const asks = step?.kind ?? 'password'
  return (
    <form className="stack" onSubmit={submit} aria-busy={busy}>
      {codes.length > 0 && (
        <div className="note info">
          <Icon name="key" />
          <div className="stack tight">
            <strong>{t('totp.codes.title')}</strong>
            <span>{t('totp.codes.text')}</span>
            <code>{codes.join('  ')}</code>
            <Copy text={codes.join('\n')}>{t('do.copy')}</Copy>
          </div>
        </div>
      )}
      {asks === 'totp' || asks === 'enrol' ? (
        <>
          {asks === 'enrol' && (
            <div className="stack tight">
              <p className="soft">{t('login.enrol')}</p>
              {enrolment && (
                <div className="cli">
                  <code>{enrolment.totp_key}</code>
                  <Copy text={enrolment.totp_key} />
                </div>
              )}
              {enrolment && (
                <Anchor href={enrolment.totp_uri} size="sm">
                  {t('login.enrol.open')}
                </Anchor>
              )}
            </div>
          )}
          <TextInput
            label={t('login.otp')}
            description={asks === 'totp' ? t('login.otp.hint') : undefined}
            value={otp}
            autoComplete="one-time-code"
            inputMode="numeric"
            onChange={(e) => setOtp(e.currentTarget.value)}
            required
            autoFocus
            key={asks}
            error={step?.kind === 'totp' && step.wrong ? t('login.otp.wrong') : undefined}
          />
        </>
      ) : asks === 'expired' ? (
        <>
          <p className="soft">{t('login.expired')}</p>
          <PasswordInput
            label={t('login.password.new')}
            value={fresh}
            onChange={(e) => setFresh(e.currentTarget.value)}
            autoComplete="new-password"
            required
            autoFocus
          />
          <PasswordInput
            label={t('login.password.again')}
            value={again}
            onChange={(e) => setAgain(e.currentTarget.value)}
            autoComplete="new-password"
            required
          />
        </>
      ) : (
        <>
          <TextInput
            label={t('login.name')}
            value={username}
            onChange={(e) => setUsername(e.currentTarget.value)}
            autoComplete="username"
            required
            autoFocus={!as}
            readOnly={!!as}
            name="username"
          />
          <PasswordInput
            label={t('login.password')}
            value={password}
            onChange={(e) => setPassword(e.currentTarget.value)}
            autoComplete="current-password"
            required
            autoFocus={!!as}
            name="password"
          />
          {asks === 'elsewhere' && (
            <div className="note">
              <Icon name="info" />
              <span>{t('login.elsewhere')}</span>
            </div>
          )}
          {step?.kind === 'refused' && (
            <div className="fault" role="alert">
              <Icon name="warn" />
              <span>{step.details === 'User credential mismatch.' ? t('login.mismatch') : step.details}</span>
            </div>
          )}
        </>
      )}
      {error !== null && <ErrorState error={error} />}
      <Button type="submit" variant="filled" loading={busy} fullWidth h={38}>
        {asks === 'elsewhere'
          ? t('login.force')
          : asks === 'expired'
            ? t('login.replace')
            : asks === 'totp' || asks === 'enrol'
              ? t('login.otp.send')
              : t('login.do')}
      </Button>
      {step && step.kind !== 'refused' && (
        <Button
          variant="subtle"
          onClick={() => {
            setStep(null)
            setError(null)
            setOtp('')
          }}>
          {t('do.back')}
        </Button>
      )}
      {!step &&
        providers.map((p) => (
          <Button
            key={p.name}
            component="a"
            fullWidth
            h={38}
            href={`/server/oidc/${encodeURIComponent(p.name)}/start?next=${encodeURIComponent(location.pathname + location.search)}`}>
            {t('login.with', { name: p.title || p.name })}
          </Button>
        ))}
    </form>
  )
}
