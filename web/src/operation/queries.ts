import { queryOptions } from '@tanstack/react-query'
import { func } from '@/api/http'
import type { Announcement, FindingList, Finding, ManagerStatus, UsagePrice, UsagePrices, UsageReport, UsageSeries } from '@/api/types'

export const announcementQuery = queryOptions({
  queryKey: ['operation', 'announcement'],
  staleTime: 60_000,
  queryFn: () => func<Announcement>('/manager/announcement'),
})
export const announce = (enabled: boolean, message: string) => func<null>('/manager/announcement', { body: { enabled, message } })

export type { Finding } from '@/api/types'

/** Whether the cluster answers; for administrators, what is wrong with it. */
export const healthQuery = (admin: boolean) =>
  queryOptions({
    queryKey: ['operation', 'health', admin],
    queryFn: async (): Promise<Finding[]> => {
      if (admin) return (await func<FindingList>('/manager/doctor')).findings
      await func<unknown>('/auth')
      return []
    },
  })

export const clusterStatusQuery = queryOptions({
  queryKey: ['operation', 'status'],
  queryFn: () => func<ManagerStatus>('/manager/status'),
})
export const setClusterStatus = (status: string) => func<null>('/manager/status', { method: 'PUT', body: { status, force_kill: false } })

/** What was held in a month, by project, user, domain or resource group; a domain's administrator is told of the domain alone. */
export const usageQuery = (month: string, by: string) =>
  queryOptions({
    queryKey: ['operation', 'usage', month, by],
    queryFn: () => func<UsageReport>('/usage/report', { query: { month, by } }),
  })
/** What was held step by step. */
export const seriesQuery = (query: Record<string, string>, step: string, by: string) =>
  queryOptions({
    queryKey: ['operation', 'series', query, step, by],
    queryFn: ({ signal }) => func<UsageSeries>('/usage/series', { query: { ...query, step, by }, signal }),
  })
export const pricesQuery = queryOptions({
  queryKey: ['operation', 'prices'],
  queryFn: async () => (await func<UsagePrices>('/usage/prices')).items,
})
export const setPrice = (p: UsagePrice) => func<UsagePrice>('/usage/prices', { body: p })
export const removePrice = (id: string) => func<null>(`/usage/prices/${encodeURIComponent(id)}`, { method: 'DELETE' })
