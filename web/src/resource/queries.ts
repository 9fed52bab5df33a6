import { queryOptions } from '@tanstack/react-query'
import { func, gql, mutate, parsed } from '@/api/http'

export interface Limit {
  kind: string
  what: string
  remaining: string
  levels: { level: string; name: string; policy?: string; limit: string; using: string; remaining: string; binds: boolean }[]
}

export const limitsQuery = (group: string) =>
  queryOptions({
    queryKey: ['resource', 'limits', group],
    queryFn: async () => (await func<{ limits: Limit[] }>('/resource/limits', { query: { group } })).limits,
    refetchInterval: 30_000,
  })

export interface Preset {
  id: string
  name: string
  resource_slots: Record<string, string>
  shared_memory: number | null
  allocatable: boolean
  scaling_group_name?: string
}
export interface Presets {
  presets: Preset[]
  keypair_limits: Record<string, string>
  keypair_using: Record<string, string>
  keypair_remaining: Record<string, string>
  scaling_group_remaining: Record<string, string>
  scaling_groups: Record<string, { using: Record<string, string>; remaining: Record<string, string> }>
}

export const presetsQuery = (group: string, scalingGroup?: string) =>
  queryOptions({
    queryKey: ['resource', 'presets', group, scalingGroup ?? ''],
    refetchInterval: 20_000,
    queryFn: () => func<Presets>('/resource/check-presets', { body: scalingGroup ? { group, scaling_group: scalingGroup } : { group } }),
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
export interface Agent {
  id: string
  status: string
  architecture: string
  scaling_group: string
  schedulable: boolean
  addr: string
  version: string
  available: Record<string, string>
  occupied: Record<string, string>
  node: Record<string, Gauge>
  devices: Record<string, Record<string, Gauge>>
  hardware: { Slot: string; ID: string; Healthy: boolean; Capacity: number }[]
  conditions: { kind?: string; detail?: string; msg?: string }[]
  container_count: number
  first_contact: string | null
}

interface RawAgent {
  available_slots: string
  occupied_slots: string
  live_stat: string | null
  hardware_metadata: string | null
  conditions: string | null
}

export const agentsQuery = queryOptions({
  queryKey: ['resource', 'agents'],
  refetchInterval: 5_000,
  queryFn: async () => {
    const ask = (
      status: string,
    ) => `agent_list(limit: 100, offset: 0, status: "${status}") { items { id status architecture scaling_group schedulable addr version
      available_slots occupied_slots live_stat hardware_metadata conditions container_count first_contact } }`
    type One = { items: (RawAgent & Omit<Agent, 'available'>)[] }
    const d = await gql<{ alive: One; lost: One }>(`query { alive: ${ask('ALIVE')} lost: ${ask('LOST')} }`)
    return [...d.lost.items, ...d.alive.items].map((a): Agent => {
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
    })
  },
})

export interface AgentDetail {
  id: string
  sessions: { id: string; name: string; type: string; status: string; user_email: string; created_at: string; containers: unknown }[]
  session_count: number
}

export const agentQuery = (id: string) =>
  queryOptions({
    queryKey: ['resource', 'agent', id],
    queryFn: () => func<AgentDetail>(`/resource/agents/${encodeURIComponent(id)}`),
    refetchInterval: 10_000,
  })

export const cordon = (id: string, schedulable: boolean) =>
  func<unknown>(`/resource/agents/${encodeURIComponent(id)}`, { method: 'PATCH', body: { schedulable } })

export interface SchedulerGroup {
  name: string
  is_active: boolean
  scheduler: string
  placement: string
  pending: number
  running: number
  reasons: Record<string, number>
  agents_alive: number
  agents_cordoned: number
  agents_lost: number
  capacity: Record<string, string>
  occupied: Record<string, string>
  warning?: string
}

export const schedulerQuery = queryOptions({
  queryKey: ['resource', 'scheduler'],
  refetchInterval: 10_000,
  queryFn: () => func<{ scaling_groups: SchedulerGroup[]; leader: boolean; last_pass: string }>('/manager/scheduler'),
})

export const schedulingChoicesQuery = queryOptions({
  queryKey: ['resource', 'choices'],
  staleTime: Infinity,
  queryFn: () => func<{ orders: string[]; placements: string[] }>('/config/scheduling-policies'),
})

export const setScheduler = (group: string, body: Record<string, unknown>) =>
  func<unknown>(`/scaling-groups/${encodeURIComponent(group)}/scheduler`, { method: 'PATCH', body })

export interface KeypairPolicy {
  name: string
  created_at: string
  total_resource_slots: string
  max_session_lifetime: number
  max_concurrent_sessions: number
  max_containers_per_session: number
  max_pending_session_count: number | null
  max_priority: number | null
  idle_timeout: number
  default_for_unspecified: string
}

export const policiesQuery = queryOptions({
  queryKey: ['resource', 'policies'],
  queryFn: async () =>
    (
      await gql<{ keypair_resource_policies: KeypairPolicy[] }>(`query { keypair_resource_policies { name created_at total_resource_slots
    max_session_lifetime max_concurrent_sessions max_containers_per_session max_pending_session_count max_priority idle_timeout default_for_unspecified } }`)
    ).keypair_resource_policies,
})

export type PolicyProps = Record<string, unknown>
export const createPolicy = (name: string, props: PolicyProps) =>
  mutate(
    'mutation($n: String!, $p: CreateKeyPairResourcePolicyInput!) { create_keypair_resource_policy(name: $n, props: $p) { ok msg } }',
    { n: name, p: props },
  )
export const modifyPolicy = (name: string, props: PolicyProps) =>
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
