import { queryOptions } from '@tanstack/react-query'
import type { GroupNode, Told } from '@/api/graph'
import { containing, func, gql, mutate, quoted } from '@/api/http'
import type {
  AdminKeypair,
  Deliveries,
  Domain as WireDomain,
  Dotfile,
  LoginList,
  LoginsEnded,
  Member,
  NewToken,
  OTPConfirmed,
  OTPEnrolment,
  OTPStatus,
  PreferenceChange,
  Preferences,
  SSHKeypair,
  SSHPublicKey,
  Tenancy,
  TenancyChange,
  TenancyPlan,
  TenancyRequest,
  TenancyResults,
  TenancySteps,
  TokenPage,
  TokenRequest,
  Tried,
  User as WireUser,
} from '@/api/types'
import type { Page } from '@/design/paged'
import type { Choices } from '@/design/Picker'

/** What lists of users show. */
export type User = Pick<
  WireUser,
  | 'uuid'
  | 'username'
  | 'email'
  | 'full_name'
  | 'description'
  | 'status'
  | 'created_at'
  | 'domain_name'
  | 'role'
  | 'resource_policy'
  | 'groups'
> & {
  main_access_key: string | null
  allowed_client_ip: string[] | null
  totp_activated: boolean
  need_password_change: boolean
}

const userFields =
  'uuid username email full_name description status created_at domain_name role resource_policy groups { id name } totp_activated need_password_change allowed_client_ip main_access_key'

export async function listUsers(filter: string, order: string, limit: number, offset: number, signal?: AbortSignal): Promise<Page<User>> {
  const d = await gql<{ user_list: { total_count: number; items: User[] } }>(
    `query($l: Int!, $o: Int!, $f: String, $s: String) { user_list(limit: $l, offset: $o, filter: $f, order: $s) { total_count items { ${userFields} } } }`,
    { l: limit, o: offset, f: filter || null, s: order },
    signal,
  )
  return { items: d.user_list.items, total: d.user_list.total_count }
}

/** Users to choose from, by their emails; found by their names too. */
export const userChoices: Choices = {
  key: ['tenancy', 'users'],
  load: async (q, limit, offset, signal) => {
    const f = q ? `(${containing('email', q)} | ${containing('full_name', q)})` : ''
    const p = await listUsers(f, 'email', limit, offset, signal)
    return { total: p.total, items: p.items.map((u) => ({ value: u.email, label: u.full_name ? `${u.email} (${u.full_name})` : u.email })) }
  },
}
export type UserProps = Record<string, unknown>
export const createUser = (email: string, props: UserProps) =>
  mutate<{ create_user: { keypair: { access_key: string; secret_key: string } | null } }>(
    'mutation($e: String!, $p: UserInput!) { create_user(email: $e, props: $p) { ok msg keypair { access_key secret_key } } }',
    { e: email, p: props },
  )
export const modifyUser = (email: string, props: UserProps) =>
  mutate('mutation($e: String!, $p: ModifyUserInput!) { modify_user(email: $e, props: $p) { ok msg } }', { e: email, p: props })

type Node = Told<
  GroupNode,
  'row_id' | 'name' | 'description' | 'is_active' | 'created_at' | 'domain_name' | 'resource_policy' | 'type' | 'scaling_groups'
>
export type Project = Omit<Node, 'row_id'> & { id: string }

const projectFields = 'row_id name description is_active created_at domain_name resource_policy type scaling_groups'

/** The condition of a list of projects: a part of the name or the description, in any case, and whether they are active. */
export function projectFilter(q: string | undefined, status: string | undefined, domain?: string): string {
  const out: string[] = []
  if (q) {
    const like = quoted(`%${q.replace(/[%_]/g, '\\$&')}%`)
    out.push(`(name ilike ${like} | description ilike ${like})`)
  }
  if (status !== 'all') out.push(`is_active == ${status !== 'inactive'}`)
  if (domain) out.push(`domain_name == ${quoted(domain)}`)
  return out.join(' & ')
}

/** A page of projects. */
export async function listProjects(
  filter: string,
  order: string,
  limit: number,
  offset: number,
  signal?: AbortSignal,
): Promise<Page<Project>> {
  const d = await gql<{ group_nodes: { count: number; edges: { node: Node }[] } }>(
    `query($f: String, $s: String, $l: Int!, $o: Int!) {
      group_nodes(filter: $f, order: $s, first: $l, offset: $o) { count edges { node { ${projectFields} } } } }`,
    { f: filter || null, s: order, l: limit, o: offset },
    signal,
  )
  return { total: d.group_nodes.count, items: d.group_nodes.edges.map(({ node: { row_id, ...p } }) => ({ ...p, id: row_id })) }
}

/** Projects of a domain to choose from, by their ids. */
export const projectChoices = (domain: string): Choices => ({
  key: ['tenancy', 'projects', domain],
  load: async (q, limit, offset, signal) => {
    const p = await listProjects(projectFilter(q, 'all', domain), 'name', limit, offset, signal)
    return { total: p.total, items: p.items.map((x) => ({ value: x.id, label: x.name })) }
  },
})
/** The names of the projects that a user is in. */
export const projectsOfQuery = (email: string) =>
  queryOptions({
    queryKey: ['tenancy', 'projects', 'of', email],
    staleTime: 30_000,
    queryFn: async ({ signal }) =>
      (
        await gql<{ user: { groups: { name: string }[] } | null }>(
          'query($e: String!) { user(email: $e) { groups { name } } }',
          { e: email },
          signal,
        )
      ).user?.groups.map((g) => g.name) ?? [],
  })
/** The project that new users of a domain are in, where there is one. */
export const usualProjectQuery = (domain: string) =>
  queryOptions({
    queryKey: ['tenancy', 'projects', 'usual', domain],
    staleTime: 30_000,
    queryFn: async ({ signal }) =>
      (await listProjects(`${projectFilter(undefined, 'all', domain)} & name == "default"`, 'name', 1, 0, signal)).items[0] ?? null,
  })
export const createProject = (name: string, props: Record<string, unknown>) =>
  mutate('mutation($n: String!, $p: GroupInput!) { create_group(name: $n, props: $p) { ok msg } }', { n: name, p: props })
export const modifyProject = (gid: string, props: Record<string, unknown>) =>
  mutate('mutation($g: UUID!, $p: ModifyGroupInput!) { modify_group(gid: $g, props: $p) { ok msg } }', { g: gid, p: props })

export type { Member } from '@/api/types'
export const membersQuery = (gid: string) =>
  queryOptions({
    queryKey: ['tenancy', 'members', gid],
    queryFn: async () =>
      (
        await gql<{ group_members: Member[] }>('query($g: UUID!) { group_members(gid: $g) { uuid email full_name status is_admin } }', {
          g: gid,
        })
      ).group_members,
  })

export type Domain = Pick<WireDomain, 'name' | 'description' | 'is_active' | 'created_at' | 'total_resource_slots'>
/** A page of the domains whose names or descriptions hold a text, by their names. */
export async function listDomains(
  q: string | undefined,
  limit: number,
  offset: number,
  signal?: AbortSignal,
  activeAlone = false,
): Promise<Page<Domain>> {
  const conditions = [q ? `(${containing('name', q)} | ${containing('description', q)})` : '', activeAlone ? 'is_active == true' : '']
  const d = await gql<{ domain_list: { items: Domain[]; total_count: number } }>(
    `query($l: Int!, $o: Int!, $f: String) {
      domain_list(limit: $l, offset: $o, filter: $f) { total_count items { name description is_active created_at total_resource_slots } } }`,
    { l: limit, o: offset, f: conditions.filter(Boolean).join(' & ') || null },
    signal,
  )
  return { total: d.domain_list.total_count, items: d.domain_list.items }
}
/** Domains to choose from, by their names. */
export const domainChoices = (activeAlone = false): Choices => ({
  key: ['tenancy', 'domains', activeAlone],
  load: async (q, limit, offset, signal) => {
    const p = await listDomains(q, limit, offset, signal, activeAlone)
    return { total: p.total, items: p.items.map((d) => ({ value: d.name, label: d.name })) }
  },
})
export const createDomain = (name: string, props: Record<string, unknown>) =>
  mutate('mutation($n: String!, $p: DomainInput!) { create_domain(name: $n, props: $p) { ok msg } }', { n: name, p: props })
export const modifyDomain = (name: string, props: Record<string, unknown>) =>
  mutate('mutation($n: String!, $p: ModifyDomainInput!) { modify_domain(name: $n, props: $p) { ok msg } }', { n: name, p: props })

// What belongs to the person who is logged in.
export type OwnKeypair = Pick<
  AdminKeypair,
  'access_key' | 'is_active' | 'is_main' | 'created_at' | 'last_used' | 'resource_policy' | 'expires_at'
>
export const keypairsQuery = (email: string) =>
  queryOptions({
    queryKey: ['tenancy', 'keypairs', email],
    queryFn: async () =>
      (
        await gql<{ keypairs: OwnKeypair[] }>(
          'query($e: String) { keypairs(email: $e) { access_key is_active is_main created_at last_used resource_policy expires_at } }',
          { e: email },
        )
      ).keypairs,
  })
export const rotateKeypair = (overlap: number) =>
  mutate<{ rotate_keypair: { keypair: { access_key: string; secret_key: string } } }>(
    'mutation($o: Int) { rotate_keypair(overlap: $o) { ok msg keypair { access_key secret_key } } }',
    { o: overlap },
  )

export const sshQuery = queryOptions({ queryKey: ['tenancy', 'ssh'], queryFn: () => func<SSHPublicKey>('/auth/ssh-keypair') })
export const makeSsh = () => func<SSHKeypair>('/auth/ssh-keypair', { method: 'PATCH' })

export type { Dotfile } from '@/api/types'
export const dotfilesQuery = queryOptions({ queryKey: ['tenancy', 'dotfiles'], queryFn: () => func<Dotfile[]>('/user-config/dotfiles') })
export const saveDotfile = (path: string, data: string, permission: string, isNew: boolean) =>
  func<unknown>('/user-config/dotfiles', {
    method: isNew ? 'POST' : 'PATCH',
    query: { path, permission },
    body: { data, path, permission },
  })
export const deleteDotfile = (path: string) => func<unknown>('/user-config/dotfiles', { method: 'DELETE', query: { path } })

export const totpQuery = queryOptions({ queryKey: ['tenancy', 'totp'], queryFn: () => func<OTPStatus>('/totp') })
export const beginTotp = () => func<OTPEnrolment>('/totp', { body: {} })
export const verifyTotp = (otp: string) => func<OTPConfirmed>('/totp/verify', { body: { otp } })
export const endTotp = () => func<null>('/totp', { method: 'DELETE' })

export type { LoginSession as Login } from '@/api/types'
export const loginsQuery = queryOptions({
  queryKey: ['tenancy', 'logins'],
  queryFn: async () => (await func<LoginList>('/auth/logins')).items,
})
export const endLogin = (id: string) => func<LoginsEnded>(`/auth/logins/${encodeURIComponent(id)}`, { method: 'DELETE' })

export type { Token } from '@/api/types'
export const tokensQuery = queryOptions({
  queryKey: ['tenancy', 'tokens'],
  queryFn: async () => (await func<TokenPage>('/auth/tokens')).items,
})
export const createToken = (name: string, expires_in: string, read_only: boolean) =>
  func<NewToken>('/auth/tokens', { body: { name, expires_in, read_only } satisfies Partial<TokenRequest> })
export const endToken = (id: string) => func<null>(`/auth/tokens/${id}`, { method: 'DELETE' })

export type { Delivery, PreferenceChange, Preferences } from '@/api/types'
export const noticePreferencesQuery = queryOptions({
  queryKey: ['tenancy', 'notices', 'preferences'],
  queryFn: () => func<Preferences>('/notices/preferences'),
})
export const setNoticePreferences = (body: PreferenceChange) => func<Preferences>('/notices/preferences', { method: 'PUT', body })
export const tryNotice = (channel: string) => func<Tried>('/notices/test', { body: { channel } })
export const deliveriesQuery = queryOptions({
  queryKey: ['tenancy', 'notices', 'sent'],
  queryFn: async () => (await func<Deliveries>('/notices')).items,
  // What waits is sent within seconds, or says why not.
  refetchInterval: (q) => (q.state.data?.some((d) => d.state === 'waiting') ? 3_000 : false),
})

export const setFullName = (full_name: string) => func<unknown>('/auth/update-full-name', { body: { full_name } })
export const setPassword = (old_password: string, new_password: string) =>
  func<{ error_msg?: string } | null>('/auth/update-password', { body: { old_password, new_password, new_password2: new_password } })

export type Keypair = OwnKeypair &
  Pick<AdminKeypair, 'user_id' | 'is_admin' | 'rate_limit'> & {
    num_queries: number
  }

export async function listKeypairs(
  filter: string,
  order: string,
  limit: number,
  offset: number,
  signal?: AbortSignal,
): Promise<Page<Keypair>> {
  const d = await gql<{ keypair_list: { total_count: number; items: Keypair[] } }>(
    `query($l: Int!, $o: Int!, $f: String, $s: String) { keypair_list(limit: $l, offset: $o, filter: $f, order: $s) { total_count items {
      access_key user_id is_active is_admin is_main resource_policy rate_limit num_queries created_at last_used expires_at } } }`,
    { l: limit, o: offset, f: filter || null, s: order },
    signal,
  )
  return { items: d.keypair_list.items, total: d.keypair_list.total_count }
}
export const createKeypair = (email: string, props: Record<string, unknown>) =>
  mutate<{ create_keypair: { keypair: { access_key: string; secret_key: string } } }>(
    'mutation($u: String!, $p: KeyPairInput!) { create_keypair(user_id: $u, props: $p) { ok msg keypair { access_key secret_key } } }',
    { u: email, p: props },
  )
export const modifyKeypair = (key: string, props: Record<string, unknown>) =>
  mutate('mutation($k: String!, $p: ModifyKeyPairInput!) { modify_keypair(access_key: $k, props: $p) { ok msg } }', { k: key, p: props })
export const deleteKeypair = (key: string) => mutate('mutation($k: String!) { delete_keypair(access_key: $k) { ok msg } }', { k: key })

// Users as a table: the manager says what would change, then carries out the changes in steps.
export const exportUsers = async () => (await func<Tenancy>('/tenancy/export', { query: { format: 'csv' } })).text
export const planUsers = (text: string) =>
  func<TenancyPlan>('/tenancy/plan', { body: { format: 'csv', text, prune: false } satisfies TenancyRequest })
export const applyUsers = async (changes: TenancyChange[]) =>
  (await func<TenancyResults>('/tenancy/apply', { body: { changes } satisfies TenancySteps })).results
