import { queryOptions, useSuspenseQuery } from '@tanstack/react-query'
import { useSyncExternalStore } from 'react'
import type { Told, User } from '@/api/graph'
import { gql } from '@/api/http'
import type { ProjectRef } from '@/api/types'

export type Me = Told<
  User,
  'email' | 'username' | 'full_name' | 'role' | 'domain_name' | 'uuid' | 'totp_activated' | 'main_access_key' | 'need_password_change'
> & { groups: ProjectRef[] }

export const meQuery = queryOptions({
  queryKey: ['tenancy', 'me'],
  staleTime: 60_000,
  queryFn: async () =>
    (
      await gql<{ user: Me }>(`query { user { email username full_name role domain_name uuid totp_activated main_access_key
    need_password_change groups { id name } } }`)
    ).user,
})

export function useMe(): Me {
  return useSuspenseQuery(meQuery).data
}

export const isAdmin = (me: Me) => me.role === 'superadmin' || me.role === 'admin'
export const isSuper = (me: Me) => me.role === 'superadmin'

// The project in which things are made. It is a choice of this browser.
const kept = 'berth.project'
let chosen = ''
try {
  chosen = localStorage.getItem(kept) ?? ''
} catch {
  // Storage may be forbidden.
}
const listeners = new Set<() => void>()

export function chooseProject(name: string) {
  chosen = name
  try {
    localStorage.setItem(kept, name)
  } catch {
    // It holds until the page is left.
  }
  for (const l of listeners) l()
}

export function useProject(): string {
  const me = useMe()
  const name = useSyncExternalStore(
    (l) => {
      listeners.add(l)
      return () => listeners.delete(l)
    },
    () => chosen,
  )
  return me.groups.some((g) => g.name === name) ? name : (me.groups[0]?.name ?? 'default')
}
