import { Button, Modal, PasswordInput, Select, Switch, TextInput } from '@mantine/core'
import { useQuery, useQueryClient } from '@tanstack/react-query'
import { getRouteApi, Link, useNavigate } from '@tanstack/react-router'
import { useState, type FormEvent } from 'react'
import { quoted } from '@/api/http'
import { DataTable, type Column } from '@/design/DataTable'
import { Icon } from '@/design/icons'
import { usePaged } from '@/design/paged'
import { Ago, ConfirmAction, Copy, EmptyState, ErrorState, PageHead, StateBadge, useTitle } from '@/design/parts'
import { ManyPicker, Picker } from '@/design/Picker'
import { SearchField } from '@/design/SearchField'
import { ownPolicyChoices } from '@/resource/queries'
import { t, tAny, type Word } from '@/words'
import { password } from './bulk'
import { isSuper, useMe } from './me'
import { createUser, domainChoices, listUsers, modifyUser, projectChoices, usualProjectQuery, type User } from './queries'

const route = getRouteApi('/admin/users')
const statuses = ['active', 'inactive', 'all'] as const

export function userFilter(q: string | undefined, status: string | undefined): string {
  const out: string[] = []
  if (q) {
    const like = quoted(`%${q.replace(/[%_]/g, '\\$&')}%`)
    out.push(`(email ilike ${like} | full_name ilike ${like} | username ilike ${like})`)
  }
  if (status !== 'all') out.push(`status == ${quoted(status ?? 'active')}`)
  return out.join(' & ')
}

export function UsersPage() {
  const search = route.useSearch()
  const go = useNavigate({ from: '/admin/users' })
  useTitle(t('nav.users'))
  const filter = userFilter(search.q, search.status)
  const order = search.order ?? 'email'
  const paged = usePaged<User>(['tenancy', 'users', filter, order], (l, o, s) => listUsers(filter, order, l, o, s))
  const [open, setOpen] = useState<User | 'new' | null>(null)
  const set = (part: Partial<typeof search>) => void go({ search: (old) => ({ ...old, ...part }), replace: true })
  const columns: Column<User>[] = [
    {
      id: 'email',
      title: t('share.who'),
      width: 'minmax(200px, 2fr)',
      sort: 'email',
      cell: (u) => (
        <span className="medium" title={u.email}>
          {u.email}
        </span>
      ),
    },
    {
      id: 'status',
      title: t('col.status'),
      width: '120px',
      sort: 'status',
      cell: (u) => <StateBadge status={u.status} />,
      glow: (u) => u.status,
    },
    {
      id: 'name',
      title: t('profile.fullname'),
      width: 'minmax(140px, 1fr)',
      sort: 'full_name',
      wide: true,
      cell: (u) => u.full_name || <span className="dim">–</span>,
    },
    { id: 'role', title: t('user.role'), width: '120px', sort: 'role', wide: true, cell: (u) => tAny(`role.${u.role}`, u.role) },
    {
      id: 'projects',
      title: t('nav.projects'),
      width: 'minmax(140px, 1fr)',
      wide: true,
      cell: (u) => u.groups.map((g) => g.name).join(', ') || <span className="dim">–</span>,
    },
    { id: 'domain', title: t('user.domain'), width: '110px', sort: 'domain_name', wide: true, cell: (u) => u.domain_name },
    {
      id: 'totp',
      title: '2FA',
      width: '60px',
      wide: true,
      cell: (u) =>
        u.totp_activated ? (
          <span title={t('user.totp')}>
            <Icon name="check" size={14} />
          </span>
        ) : (
          <span className="dim">–</span>
        ),
    },
    { id: 'since', title: t('user.since'), width: '120px', sort: 'created_at', wide: true, cell: (u) => <Ago at={u.created_at} /> },
  ]
  return (
    <div className="page">
      <PageHead title={t('nav.users')}>
        <Button leftSection={<Icon name="upload" />} onClick={() => void go({ to: '/admin/users/import' })}>
          {t('import.open')}
        </Button>
        <Button variant="filled" leftSection={<Icon name="plus" />} onClick={() => setOpen('new')}>
          {t('user.new')}
        </Button>
      </PageHead>
      <div className="row wrap">
        {statuses.map((s) => (
          <button
            key={s}
            type="button"
            className="chip"
            aria-pressed={(search.status ?? 'active') === s}
            onClick={() => set({ status: s === 'active' ? undefined : s } as Partial<typeof search>)}>
            {s === 'all' ? t('filter.all') : t(`status.${s}` as Word)}
          </button>
        ))}
        <SearchField label={t('user.find')} value={search.q} onFind={(q) => set({ q } as Partial<typeof search>)} />
      </div>
      <div className="panel">
        <DataTable
          label={t('nav.users')}
          columns={columns}
          total={paged.total}
          row={paged.row}
          rowKey={(u) => u.uuid}
          onRange={paged.onRange}
          error={paged.error}
          retry={paged.retry}
          order={order}
          onOrder={(o) => set({ order: o })}
          onOpen={setOpen}
          empty={
            <EmptyState
              title={t('user.none')}
              cli="berth user create ada@example.org"
              action={
                search.q || search.status ? (
                  <Button
                    onClick={() => {
                      void go({ search: {} })
                    }}>
                    {t('filter.clear')}
                  </Button>
                ) : undefined
              }
            />
          }
        />
      </div>
      <Modal opened={open !== null} onClose={() => setOpen(null)} title={open === 'new' ? t('user.new') : (open?.email ?? '')} size={560}>
        {open !== null && (
          <UserForm key={open === 'new' ? 'new' : open.uuid} of={open === 'new' ? null : open} onDone={() => setOpen(null)} />
        )}
      </Modal>
    </div>
  )
}

function UserForm({ of: u, onDone }: { of: User | null; onDone: () => void }) {
  const me = useMe()
  const client = useQueryClient()
  const [email, setEmail] = useState(u?.email ?? '')
  const [name, setName] = useState(u?.full_name ?? '')
  const [pass, setPass] = useState(u ? '' : password())
  const [mustChange, setMustChange] = useState(u?.need_password_change ?? true)
  const [role, setRole] = useState(u?.role ?? 'user')
  const [domain, setDomain] = useState(u?.domain_name ?? me.domain_name)
  const [groups, setGroups] = useState<string[] | null>(u ? u.groups.map((g) => g.id) : null)
  const [policy, setPolicy] = useState(u?.resource_policy ?? 'default')
  const [busy, setBusy] = useState(false)
  const [error, setError] = useState<unknown>(null)
  const [made, setMade] = useState(false)
  const [ask, setAsk] = useState(false)
  const usual = useQuery({ ...usualProjectQuery(domain), enabled: !u }).data ?? null
  const chosen = groups ?? (usual ? [usual.id] : [])
  const names = new Map([...(u?.groups ?? []), ...(usual ? [usual] : [])].map((p) => [p.id, p.name]))
  const submit = (e: FormEvent) => {
    e.preventDefault()
    setBusy(true)
    setError(null)
    const props: Record<string, unknown> = {
      full_name: name,
      role,
      group_ids: chosen,
      resource_policy: policy,
      need_password_change: mustChange,
    }
    if (pass) props['password'] = pass
    const work = u
      ? modifyUser(u.email, props)
      : createUser(email.trim(), { ...props, username: email.trim(), domain_name: domain, status: 'active' })
    work
      .then(async () => {
        await client.invalidateQueries({ queryKey: ['tenancy'] })
        if (u) onDone()
        else setMade(true)
      }, setError)
      .finally(() => setBusy(false))
  }
  if (made) {
    return (
      <div className="stack">
        <p>{t('user.made', { email })}</p>
        <div className="cli">
          <code>{pass}</code>
          <Copy text={pass} />
        </div>
        <p className="soft small">{mustChange ? t('user.made.change') : t('profile.once')}</p>
        <Button className="self-end" variant="filled" onClick={onDone}>
          {t('do.close')}
        </Button>
      </div>
    )
  }
  const roles = ['user', 'admin', ...(isSuper(me) ? ['superadmin', 'monitor'] : [])]
  return (
    <form className="stack" onSubmit={submit}>
      {!u && (
        <TextInput
          type="email"
          label={t('share.who')}
          value={email}
          onChange={(e) => setEmail(e.currentTarget.value)}
          required
          data-autofocus
        />
      )}
      <TextInput label={t('profile.fullname')} value={name} onChange={(e) => setName(e.currentTarget.value)} />
      <div className="row wrap top">
        <Select
          label={t('user.role')}
          value={role}
          onChange={(v) => setRole(v ?? 'user')}
          data={roles.map((r) => ({ value: r, label: tAny(`role.${r}`, r) }))}
          allowDeselect={false}
          className="grow"
        />
        {!u && isSuper(me) && (
          <Picker
            label={t('user.domain')}
            of={domainChoices(true)}
            value={domain}
            onChange={(v) => {
              setDomain(v ?? domain)
              setGroups(null)
            }}
            className="grow"
          />
        )}
        <Picker
          label={t('user.policy')}
          of={ownPolicyChoices('user')}
          value={policy}
          onChange={(v) => setPolicy(v ?? policy)}
          className="grow"
        />
      </div>
      <ManyPicker label={t('nav.projects')} of={projectChoices(domain)} value={chosen} names={names} onChange={setGroups} />
      <PasswordInput
        label={u ? t('user.newpassword') : t('login.password')}
        value={pass}
        onChange={(e) => setPass(e.currentTarget.value)}
        required={!u}
        autoComplete="new-password"
        description={u ? t('user.newpassword.text') : undefined}
        {...(u ? {} : { defaultVisible: true })}
      />
      <Switch label={t('user.mustchange')} checked={mustChange} onChange={(e) => setMustChange(e.currentTarget.checked)} />
      {error !== null && <ErrorState error={error} />}
      <div className="row">
        {u && (
          <Link to="/sessions" search={{ owner: u.email }} className="small">
            {t('user.sessions')}
          </Link>
        )}
        <span className="end row">
          {u && u.email !== me.email && (
            <Button onClick={() => setAsk(true)}>{u.status === 'active' ? t('user.deactivate') : t('user.activate')}</Button>
          )}
          <Button type="submit" variant="filled" loading={busy}>
            {u ? t('do.save') : t('user.create')}
          </Button>
        </span>
      </div>
      {u && (
        <ConfirmAction
          open={ask}
          onClose={() => setAsk(false)}
          danger={u.status === 'active'}
          title={u.status === 'active' ? t('user.deactivate') : t('user.activate')}
          verb={u.status === 'active' ? t('user.deactivate') : t('user.activate')}
          doing={t('do.save')}
          onDo={async () => {
            await modifyUser(u.email, { status: u.status === 'active' ? 'inactive' : 'active' })
            await client.invalidateQueries({ queryKey: ['tenancy'] })
            onDone()
          }}>
          {u.status === 'active' ? t('user.deactivate.text', { who: u.email }) : t('user.activate.text', { who: u.email })}
        </ConfirmAction>
      )}
    </form>
  )
}
