import { Button, Checkbox, FileButton, Textarea } from '@mantine/core'
import { useQueryClient } from '@tanstack/react-query'
import { useEffect, useMemo, useRef, useState } from 'react'
import type { TenancyChange, TenancyPlan } from '@/api/types'
import { Listing, type Column } from '@/design/DataTable'
import { Icon } from '@/design/icons'
import { Cli, EmptyState, ErrorState, PageHead, Panel, Skeleton, useTitle } from '@/design/parts'
import { csvRow, saveText } from '@/design/save'
import { t } from '@/words'
import { carryOut, isNewUser, password, type Outcome } from './bulk'
import { applyUsers, exportUsers, planUsers } from './queries'
import './import.css'

const columns = 'email, username, full_name, description, domain, projects (a|b), role, status, policy, keypair_policy, allowed_from'
const largest = 4 << 20

interface Row {
  change: TenancyChange
  outcome: Outcome
}

export function ImportPage() {
  const again = useRef<() => void>(null)
  useTitle(t('import.title'))
  const client = useQueryClient()
  const [text, setText] = useState('')
  const [plan, setPlan] = useState<{ of: string; plan: TenancyPlan } | null>(null)
  const [busy, setBusy] = useState<'plan' | 'apply' | 'export' | ''>('')
  const [error, setError] = useState<unknown>(null)
  const [letter, setLetter] = useState(false)
  const [outcomes, setOutcomes] = useState<Outcome[] | null>(null)
  const [passwords, setPasswords] = useState<[string, string][]>([])
  const stop = useRef(false)
  useEffect(() => () => void (stop.current = true), [])
  // What is shown once must not be lost by a slip.
  useEffect(() => {
    if (!passwords.length && busy !== 'apply') return
    const ask = (e: BeforeUnloadEvent) => e.preventDefault()
    window.addEventListener('beforeunload', ask)
    return () => window.removeEventListener('beforeunload', ask)
  }, [passwords.length, busy])

  const look = async (of: string) => {
    setBusy('plan')
    setError(null)
    setOutcomes(null)
    try {
      setPlan({ of, plan: await planUsers(of) })
    } catch (err) {
      setPlan(null)
      setError(err)
    } finally {
      setBusy('')
    }
  }
  const fetchUsers = async (then: (csv: string) => void) => {
    setBusy('export')
    setError(null)
    try {
      then(await exportUsers())
    } catch (err) {
      setError(err)
    } finally {
      setBusy('')
    }
  }
  const apply = async () => {
    if (!plan) return
    stop.current = false
    setBusy('apply')
    setError(null)
    const changes = plan.plan.changes.map((c): TenancyChange => {
      if (!isNewUser(c)) return c
      return letter ? { ...c, letter: true } : { ...c, password: password() }
    })
    setOutcomes(changes.map(() => null))
    try {
      await carryOut(
        changes,
        (step) => {
          // They are known before the step is sent: an answer may be lost after it was carried out.
          setPasswords((old) => [...old, ...step.flatMap((c): [string, string][] => (c.password ? [[c.name, c.password]] : []))])
          return applyUsers(step)
        },
        (at, results) => {
          setOutcomes((old) => (old ?? []).map((o, i) => results[i - at] ?? o))
          const without = new Set(results.flatMap((r, i) => (r.state === 'done' ? [] : [changes[at + i]?.name])))
          setPasswords((old) => old.filter(([who]) => !without.has(who)))
        },
        () => stop.current,
      )
    } catch (err) {
      setError(err)
    } finally {
      setBusy('')
      await client.invalidateQueries({ queryKey: ['tenancy'] })
    }
  }
  const rows = useMemo(() => plan?.plan.changes.map((change, i): Row => ({ change, outcome: outcomes?.[i] ?? null })), [plan, outcomes])
  const told = (outcomes ?? []).filter((o) => o !== null)
  const failed = told.filter((o) => o.state === 'failed').length
  const stale = !!plan && plan.of !== text
  const n = plan?.plan.changes.length ?? 0
  return (
    <div className="page">
      <PageHead title={t('import.title')} sub={<span>{t('import.text')}</span>}>
        <Button
          leftSection={<Icon name="download" />}
          loading={busy === 'export'}
          onClick={() => void fetchUsers((csv) => saveText('users.csv', csv))}>
          {t('import.download')}
        </Button>
      </PageHead>
      <form
        className="stack"
        onSubmit={(e) => {
          e.preventDefault()
          void look(text)
        }}>
        <Textarea
          label={t('import.table')}
          description={t('import.columns', { columns })}
          value={text}
          onChange={(e) => setText(e.currentTarget.value)}
          placeholder={'email,full_name,projects\nada@example.org,Ada Lovelace,default'}
          autosize
          minRows={6}
          maxRows={14}
          spellCheck={false}
          className="csv"
          disabled={busy === 'apply'}
          required
        />
        <div className="row wrap">
          <FileButton
            accept=".csv,text/csv,text/plain"
            resetRef={again}
            onChange={(file) => {
              again.current?.() // a file that was mended meanwhile can be chosen again
              if (!file) return
              if (file.size > largest) setError(new Error(t('import.toobig')))
              else
                void file.text().then((csv) => {
                  setText(csv)
                  void look(csv)
                }, setError)
            }}>
            {(p) => (
              <Button {...p} leftSection={<Icon name="upload" />} disabled={busy === 'apply'}>
                {t('import.choose')}
              </Button>
            )}
          </FileButton>
          <Button disabled={busy === 'apply'} onClick={() => void fetchUsers(setText)}>
            {t('import.current')}
          </Button>
          <Button type="submit" variant="filled" className="end" loading={busy === 'plan'} disabled={busy === 'apply' || !text.trim()}>
            {t('import.plan')}
          </Button>
        </div>
      </form>
      {error !== null && <ErrorState error={error} />}
      {busy === 'plan' && <Skeleton lines={4} h={20} />}
      {plan && busy !== 'plan' && (
        <>
          <Panel title={plan.plan.summary || t('import.changes', { n })} body={false}>
            {plan.plan.notes.length > 0 && (
              <div className="body">
                {plan.plan.notes.map((note) => (
                  <div key={note} className="note info">
                    <Icon name="info" />
                    <span>{note}</span>
                  </div>
                ))}
              </div>
            )}
            <Listing<Row>
              label={t('import.changes', { n })}
              columns={diffColumns(!!outcomes)}
              rows={rows}
              rowKey={(r) => `${r.change.kind} ${r.change.domain_name} ${r.change.name} ${JSON.stringify(r.change.to)}`}
              empty={<EmptyState title={t('import.none')} text={t('import.none.text')} />}
            />
          </Panel>
          {outcomes ? (
            <Outcomes done={told.length - failed} failed={failed} n={n} running={busy === 'apply'} onStop={() => (stop.current = true)}>
              {passwords.length > 0 && busy !== 'apply' && (
                <div className="stack tight">
                  <Button
                    variant="filled"
                    leftSection={<Icon name="download" />}
                    onClick={() => saveText('passwords.csv', csvRow(['email', 'password']) + passwords.map(csvRow).join(''))}>
                    {t('import.passwords', { n: passwords.length })}
                  </Button>
                  <span className="small soft">{t('import.passwords.text')}</span>
                </div>
              )}
              {busy !== 'apply' && (
                <Button
                  onClick={() => {
                    setText('')
                    setPlan(null)
                    setOutcomes(null)
                    setPasswords([])
                  }}>
                  {t('import.another')}
                </Button>
              )}
            </Outcomes>
          ) : (
            n > 0 && (
              <div className="stack">
                {plan.plan.changes.some(isNewUser) && (
                  <Checkbox
                    label={t('import.letter')}
                    description={t('import.letter.text')}
                    checked={letter}
                    onChange={(e) => setLetter(e.currentTarget.checked)}
                  />
                )}
                {stale && (
                  <div className="note">
                    <Icon name="warn" />
                    <span>{t('import.stale')}</span>
                  </div>
                )}
                <div className="row">
                  <Button variant="filled" className="end" disabled={stale} onClick={() => void apply()}>
                    {t('import.apply', { n })}
                  </Button>
                </div>
              </div>
            )
          )}
        </>
      )}
      {!plan && busy === '' && <Cli line="berth user import users.csv --dry-run" />}
    </div>
  )
}

function Outcomes(p: { done: number; failed: number; n: number; running: boolean; onStop: () => void; children: React.ReactNode }) {
  return (
    <div className="stack" role="status">
      <div className="row">
        <span className="grow">
          {p.running ? t('import.applying', { done: p.done + p.failed, n: p.n }) : t('import.done', { n: p.done })}
          {p.failed > 0 && ` · ${t('import.failed', { n: p.failed })}`}
        </span>
        {p.running && <Button onClick={p.onStop}>{t('import.stop')}</Button>}
      </div>
      <div className="row wrap top">{p.children}</div>
    </div>
  )
}

function diffColumns(applied: boolean): Column<Row>[] {
  const out: Column<Row>[] = [
    { id: 'who', title: t('share.who'), width: 'minmax(220px, 1fr)', cell: (r) => <span title={r.change.name}>{r.change.name}</span> },
    {
      id: 'make',
      title: t('col.type'),
      width: '90px',
      cell: (r) => <span className={r.change.make ? 'tag add' : 'tag'}>{t(r.change.make ? 'import.make' : 'import.modify')}</span>,
    },
    {
      id: 'what',
      title: t('import.what'),
      width: 'minmax(220px, 2fr)',
      cell: (r) => {
        const words = (r.change.words ?? []).join('; ')
        return <span title={words}>{words}</span>
      },
    },
  ]
  if (applied)
    out.push({
      id: 'outcome',
      title: t('import.outcome'),
      width: 'minmax(140px, 1fr)',
      cell: ({ outcome: o }) =>
        o === null ? (
          <span className="dim">–</span>
        ) : o.state === 'failed' ? (
          <span className="failed" title={[o.error, o.next].filter(Boolean).join('; ')}>
            {o.error}
          </span>
        ) : (
          <span className="row">
            <Icon name="check" size={14} /> {t(o.state === 'already' ? 'import.state.already' : 'status.done')}
          </span>
        ),
      glow: (r) => r.outcome?.state ?? '',
    })
  return out
}
