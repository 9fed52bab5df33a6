import { queryOptions } from '@tanstack/react-query'
import { containing, func, gql, mutate, parsed, quoted } from '@/api/http'
import type {
  Agent as WireAgent,
  ContainerRegistryNode,
  KeyPairResourcePolicy,
  ProjectResourcePolicy,
  ResourcePreset,
  StorageVolume,
  Told,
  UserResourcePolicy,
} from '@/api/graph'
import type { Page } from '@/design/paged'
import type { Choice, Choices } from '@/design/Picker'
import type {
  AgentWork,
  Device as WireDevice,
  GroupStatus,
  Limits,
  PresetCheck,
  ResourceGroup as WireGroup,
  SchedulerStatus,
  SchedulingPolicies,
} from '@/api/types'

export type { Limit } from '@/api/types'

export const limitsQuery = (group: string) =>
  queryOptions({
    queryKey: ['resource', 'limits', group],
    queryFn: async () => (await func<Limits>('/resource/limits', { query: { group } })).limits,
  })

export type { Preset } from '@/api/types'

export const presetsQuery = (group: string, scalingGroup?: string) =>
  queryOptions({
    queryKey: ['resource', 'presets', group, scalingGroup ?? ''],
    queryFn: () =>
      func<PresetCheck>('/resource/check-presets', { body: scalingGroup ? { group, scaling_group: scalingGroup } : { group } }),
  })

export const groupsForQuery = (group: string) =>
  queryOptions({
    queryKey: ['resource', 'groups', group],
    staleTime: 60_000,
    queryFn: async () =>
      (await func<{ scaling_groups: { name: string }[] }>('/scaling-groups', { query: { group } })).scaling_groups.map((g) => g.name),
  })

interface Gauge {
  current: string
  capacity: string
  pct: string
}
/** A device as its agent tells of it. An agent of an older version leaves out what it does not know. */
export type Device = Pick<WireDevice, 'Slot' | 'ID' | 'Healthy' | 'Capacity'> &
  Partial<Omit<WireDevice, 'Links'>> & { Links?: WireDevice['Links'] | null }

const agentFields = `id status architecture scaling_group schedulable addr version available_slots occupied_slots live_stat hardware_metadata
  conditions container_count first_contact`
type Plain = Told<
  WireAgent,
  'id' | 'status' | 'architecture' | 'scaling_group' | 'schedulable' | 'addr' | 'version' | 'container_count',
  'first_contact'
>
type RawAgent = Plain & Told<WireAgent, 'available_slots' | 'occupied_slots', 'live_stat' | 'hardware_metadata' | 'conditions'>

/** An agent with what is JSON inside of text on the wire. */
export interface Agent extends Plain {
  available: Record<string, string>
  occupied: Record<string, string>
  node: Record<string, Gauge>
  devices: Record<string, Record<string, Gauge>>
  hardware: Device[]
  conditions: { kind?: string; detail?: string; msg?: string }[]
}

const agentOf = (a: RawAgent): Agent => {
  const stat = parsed<{ node?: Agent['node']; devices?: Agent['devices'] }>(a.live_stat, {})
  const c = parsed<unknown>(a.conditions, [])
  return {
    ...a,
    available: parsed(a.available_slots, {}),
    occupied: parsed(a.occupied_slots, {}),
    node: stat.node ?? {},
    devices: stat.devices ?? {},
    hardware: parsed<{ devices?: Agent['hardware'] }>(a.hardware_metadata, {}).devices ?? [],
    conditions: Array.isArray(c) ? (c as Agent['conditions']) : [],
  }
}

/** Which agents: by a part of the name, and all that are in the cluster or only those that take no work. */
export function agentFilter(q: string | undefined, show: 'all' | 'ill' = 'all'): string {
  const out = ['status != "TERMINATED"']
  if (show === 'ill') out.push('(status != "ALIVE" | schedulable == false)')
  if (q) out.push(`id ilike ${quoted(`%${q.replace(/[%_]/g, '\\$&')}%`)}`)
  return out.join(' & ')
}

/** A page of agents; lost ones come first. */
export async function listAgents(filter: string, order: string, limit: number, offset: number, signal?: AbortSignal): Promise<Page<Agent>> {
  const d = await gql<{ agent_list: { items: RawAgent[]; total_count: number } }>(
    `query($filter: String, $order: String, $limit: Int!, $offset: Int!) {
      agent_list(limit: $limit, offset: $offset, status: null, filter: $filter, order: $order) { total_count items { ${agentFields} } } }`,
    { filter, order, limit, offset },
    signal,
  )
  return { total: d.agent_list.total_count, items: d.agent_list.items.map(agentOf) }
}

/** Figures of agents come every few seconds, and no event tells of them. */
export const agentFigures = 5_000

/** The agents that take no work: lost, or shut to new sessions. */
export const illAgentsQuery = queryOptions({
  queryKey: ['resource', 'agents', 'ill'],
  queryFn: ({ signal }) => listAgents(agentFilter(undefined, 'ill'), agentOrder, 5, 0, signal),
})

export const agentOrder = '-status,id'

/** One agent as the list shows it; null when there is none. */
export const agentRowQuery = (id: string) =>
  queryOptions({
    queryKey: ['resource', 'agents', 'one', id],
    refetchInterval: agentFigures,
    queryFn: async ({ signal }) => (await listAgents(`id == ${quoted(id)}`, agentOrder, 1, 0, signal)).items[0] ?? null,
  })

export const agentQuery = (id: string) =>
  queryOptions({
    queryKey: ['resource', 'agent', id],
    queryFn: () => func<AgentWork>(`/resource/agents/${encodeURIComponent(id)}`),
  })

export const cordon = (id: string, schedulable: boolean) =>
  func<unknown>(`/resource/agents/${encodeURIComponent(id)}`, { method: 'PATCH', body: { schedulable } })

export type SchedulerGroup = GroupStatus

export const schedulerQuery = queryOptions({
  queryKey: ['resource', 'scheduler'],
  queryFn: () => func<SchedulerStatus>('/manager/scheduler'),
})

export const schedulingChoicesQuery = queryOptions({
  queryKey: ['resource', 'choices'],
  staleTime: Infinity,
  queryFn: () => func<SchedulingPolicies>('/config/scheduling-policies'),
})

export const setScheduler = (group: string, body: Record<string, unknown>) =>
  func<unknown>(`/scaling-groups/${encodeURIComponent(group)}/scheduler`, { method: 'PATCH', body })

export type KeypairPolicy = Told<
  KeyPairResourcePolicy,
  | 'name'
  | 'created_at'
  | 'total_resource_slots'
  | 'max_session_lifetime'
  | 'max_concurrent_sessions'
  | 'max_containers_per_session'
  | 'idle_timeout'
  | 'default_for_unspecified',
  'max_pending_session_count' | 'max_priority'
>

const policyFields = `name created_at total_resource_slots max_session_lifetime max_concurrent_sessions max_containers_per_session
  max_pending_session_count max_priority idle_timeout default_for_unspecified`

/** A page of the policies whose names hold a text, by their names. */
export async function listPolicies(
  q: string | undefined,
  limit: number,
  offset: number,
  signal?: AbortSignal,
): Promise<Page<KeypairPolicy>> {
  const d = await gql<{ keypair_resource_policy_list: { items: KeypairPolicy[]; total_count: number } }>(
    `query($l: Int!, $o: Int!, $f: String) {
      keypair_resource_policy_list(limit: $l, offset: $o, filter: $f) { total_count items { ${policyFields} } } }`,
    { l: limit, o: offset, f: containing('name', q) },
    signal,
  )
  return { total: d.keypair_resource_policy_list.total_count, items: d.keypair_resource_policy_list.items }
}

/** Policies of keypairs to choose from, by their names. */
export const policyChoices: Choices = {
  key: ['resource', 'policies'],
  load: async (q, limit, offset, signal) => named(await listPolicies(q, limit, offset, signal)),
}
const named = (p: Page<{ name: string }>): Page<Choice> => ({
  total: p.total,
  items: p.items.map(({ name }) => ({ value: name, label: name })),
})

export type PolicyProps = Record<string, unknown>
export const createPolicy = (name: string, props: PolicyProps) =>
  mutate(
    'mutation($n: String!, $p: CreateKeyPairResourcePolicyInput!) { create_keypair_resource_policy(name: $n, props: $p) { ok msg } }',
    { n: name, p: props },
  )
export const modifyPolicy = (name: string, props: Partial<PolicyProps>) =>
  mutate(
    'mutation($n: String!, $p: ModifyKeyPairResourcePolicyInput!) { modify_keypair_resource_policy(name: $n, props: $p) { ok msg } }',
    { n: name, p: props },
  )
export const deletePolicy = (name: string) =>
  mutate('mutation($n: String!) { delete_keypair_resource_policy(name: $n) { ok msg } }', { n: name })

export const slotsQuery = queryOptions({
  queryKey: ['resource', 'slots'],
  staleTime: Infinity,
  queryFn: () => func<Record<string, string>>('/config/resource-slots'),
})

/** The limits of somebody in a project, at all levels. */
export const limitsOfQuery = (user: string, group: string) =>
  queryOptions({
    queryKey: ['resource', 'limits', 'of', user, group],
    queryFn: async () => (await func<Limits>('/resource/limits', { query: { user, group } })).limits,
    retry: false,
  })

/** What users and projects may own. Null is no limit. */
export type OwnPolicy = Told<UserResourcePolicy, 'name' | 'created_at', 'max_vfolder_count' | 'max_quota_scope_size'> &
  Partial<Pick<UserResourcePolicy, 'max_concurrent_logins' | 'max_customized_image_count'>> &
  Partial<Pick<ProjectResourcePolicy, 'max_network_count'>>
export type OwnerKind = 'user' | 'project'

const ownFields = {
  user: 'name created_at max_vfolder_count max_quota_scope_size max_concurrent_logins max_customized_image_count',
  project: 'name created_at max_vfolder_count max_quota_scope_size max_network_count',
}
/** A page of the policies of users or of projects whose names hold a text, by their names. */
export async function listOwnPolicies(
  of: OwnerKind,
  q: string | undefined,
  limit: number,
  offset: number,
  signal?: AbortSignal,
): Promise<Page<OwnPolicy>> {
  const list = `${of}_resource_policy_list` as const
  const d = await gql<Record<string, { items: OwnPolicy[]; total_count: number }>>(
    `query($l: Int!, $o: Int!, $f: String) { ${list}(limit: $l, offset: $o, filter: $f) { total_count items { ${ownFields[of]} } } }`,
    { l: limit, o: offset, f: containing('name', q) },
    signal,
  )
  return { total: d[list]!.total_count, items: d[list]!.items }
}
/** Policies of users or of projects to choose from, by their names. */
export const ownPolicyChoices = (of: OwnerKind): Choices => ({
  key: ['resource', 'ownpolicies', of],
  load: async (q, limit, offset, signal) => named(await listOwnPolicies(of, q, limit, offset, signal)),
})
const typed = { user: 'User', project: 'Project' }
export const createOwnPolicy = (of: OwnerKind, name: string, props: PolicyProps) =>
  mutate(
    `mutation($n: String!, $p: Create${typed[of]}ResourcePolicyInput!) { create_${of}_resource_policy(name: $n, props: $p) { ok msg } }`,
    { n: name, p: props },
  )
export const modifyOwnPolicy = (of: OwnerKind, name: string, props: PolicyProps) =>
  mutate(
    `mutation($n: String!, $p: Modify${typed[of]}ResourcePolicyInput!) { modify_${of}_resource_policy(name: $n, props: $p) { ok msg } }`,
    { n: name, p: props },
  )
export const deleteOwnPolicy = (of: OwnerKind, name: string) =>
  mutate(`mutation($n: String!) { delete_${of}_resource_policy(name: $n) { ok msg } }`, { n: name })

type RawOffer = Told<ResourcePreset, 'id' | 'name' | 'resource_slots', 'shared_memory' | 'scaling_group_name'>
export type Offer = Omit<RawOffer, 'resource_slots'> & { resource_slots: Record<string, string> }
export const offersQuery = queryOptions({
  queryKey: ['resource', 'offers'],
  queryFn: async () =>
    (
      await gql<{ resource_presets: RawOffer[] }>('query { resource_presets { id name resource_slots shared_memory scaling_group_name } }')
    ).resource_presets.map((p): Offer => ({ ...p, resource_slots: parsed(p.resource_slots, {}) })),
})
export const createOffer = (name: string, props: PolicyProps) =>
  mutate('mutation($n: String!, $p: CreateResourcePresetInput!) { create_resource_preset(name: $n, props: $p) { ok msg } }', {
    n: name,
    p: props,
  })
export const modifyOffer = (id: string, props: PolicyProps) =>
  mutate('mutation($i: UUID, $p: ModifyResourcePresetInput!) { modify_resource_preset(id: $i, props: $p) { ok msg } }', { i: id, p: props })
export const deleteOffer = (id: string) => mutate('mutation($i: UUID) { delete_resource_preset(id: $i) { ok msg } }', { i: id })

type RawStorage = Told<StorageVolume, 'id' | 'backend' | 'proxy' | 'name' | 'capabilities' | 'usage'>
export type Storage = Omit<RawStorage, 'usage'> & { usage: { used_bytes?: number; capacity_bytes?: number } }
/** A page of the storages whose names hold a text. */
export async function listStorages(q: string | undefined, limit: number, offset: number, signal?: AbortSignal): Promise<Page<Storage>> {
  const d = await gql<{ storage_volume_list: { items: RawStorage[]; total_count: number } }>(
    `query($l: Int!, $o: Int!, $f: String) {
      storage_volume_list(limit: $l, offset: $o, filter: $f) { total_count items { id backend proxy name capabilities usage } } }`,
    { l: limit, o: offset, f: containing('id', q) },
    signal,
  )
  const l = d.storage_volume_list
  return { total: l.total_count, items: l.items.map((s) => ({ ...s, usage: parsed(s.usage, {}) })) }
}

export type Registry = Told<ContainerRegistryNode, 'id' | 'registry_name' | 'url', 'project'>
/** A page of the registries whose names hold a text. */
export async function listRegistries(q: string | undefined, limit: number, offset: number, signal?: AbortSignal): Promise<Page<Registry>> {
  const d = await gql<{ container_registry_nodes: { count: number; edges: { node: Registry }[] } }>(
    `query($l: Int!, $o: Int!, $f: String) {
      container_registry_nodes(first: $l, offset: $o, filter: $f) { count edges { node { id registry_name url project } } } }`,
    { l: limit, o: offset, f: containing('registry_name', q) },
    signal,
  )
  const l = d.container_registry_nodes
  return { total: l.count, items: l.edges.map((e) => e.node) }
}
/** Whether there is any registry at all. */
export const anyRegistryQuery = queryOptions({
  queryKey: ['resource', 'registries', 'any'],
  queryFn: async ({ signal }) => (await listRegistries(undefined, 1, 0, signal)).total > 0,
})
export const rescanImages = () => mutate('mutation { rescan_images { ok msg } }')

export type ResourceGroup = Pick<WireGroup, 'name' | 'description' | 'is_active' | 'is_public'>
export const resourceGroupsQuery = queryOptions({
  queryKey: ['resource', 'groups', 'all'],
  queryFn: async () =>
    (await gql<{ scaling_groups: ResourceGroup[] }>('query { scaling_groups { name description is_active is_public } }')).scaling_groups,
})
export const createGroup = (name: string, props: PolicyProps) =>
  mutate('mutation($n: String!, $p: CreateScalingGroupInput!) { create_scaling_group(name: $n, props: $p) { ok msg } }', {
    n: name,
    p: { driver: 'static', scheduler: 'fifo', ...props },
  })
export const modifyGroup = (name: string, props: PolicyProps) =>
  mutate('mutation($n: String!, $p: ModifyScalingGroupInput!) { modify_scaling_group(name: $n, props: $p) { ok msg } }', {
    n: name,
    p: props,
  })
export const offerGroup = (group: string, domain: string) =>
  mutate('mutation($g: String!, $d: String!) { associate_scaling_group_with_domain(scaling_group: $g, domain: $d) { ok msg } }', {
    g: group,
    d: domain,
  })
