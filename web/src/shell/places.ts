import type { Me } from '@/tenancy/me'
import { isAdmin, isSuper } from '@/tenancy/me'
import type { Word } from '@/words'

export interface Place {
  to: string
  word: Word
  icon: string
  keys?: string
  group: 'main' | 'admin'
}

/** Where one can go. Only what exists and what the person may see stands here. */
export function placesOf(me: Me): Place[] {
  const out: Place[] = [
    { to: '/', word: 'nav.home', icon: 'home', keys: 'g h', group: 'main' },
    { to: '/sessions', word: 'nav.sessions', icon: 'sessions', keys: 'g s', group: 'main' },
    { to: '/data', word: 'nav.data', icon: 'folder', keys: 'g d', group: 'main' },
    { to: '/images', word: 'nav.images', icon: 'image', keys: 'g i', group: 'main' },
    { to: '/templates', word: 'nav.templates', icon: 'copy', keys: 'g t', group: 'main' },
  ]
  if (isSuper(me)) out.push({ to: '/admin/cluster', word: 'nav.cluster', icon: 'cluster', keys: 'g c', group: 'admin' })
  if (isAdmin(me)) {
    out.push(
      { to: '/admin/users', word: 'nav.users', icon: 'users', keys: 'g u', group: 'admin' },
      { to: '/admin/keypairs', word: 'nav.keypairs', icon: 'key', group: 'admin' },
      { to: '/admin/projects', word: 'nav.projects', icon: 'folder', keys: 'g p', group: 'admin' },
    )
  }
  if (isSuper(me)) {
    out.push(
      { to: '/admin/policies', word: 'nav.policies', icon: 'policy', group: 'admin' },
      { to: '/admin/offers', word: 'nav.resources', icon: 'offer', group: 'admin' },
    )
  }
  if (isAdmin(me)) out.push({ to: '/admin/usage', word: 'nav.usage', icon: 'usage', group: 'admin' })
  if (isAdmin(me)) out.push({ to: '/admin/audit', word: 'nav.audit', icon: 'audit', keys: 'g a', group: 'admin' })
  if (isSuper(me)) out.push({ to: '/admin/settings', word: 'nav.settings', icon: 'settings', group: 'admin' })
  return out
}

/** How many places the bar of a narrow screen shows; the last of them opens the others. */
const room = 5

/** Divides the places: what stands in the bar of a narrow screen, and what its last button opens. */
export function barOf(places: Place[]): [Place[], Place[]] {
  return places.length <= room ? [places, []] : [places.slice(0, room - 1), places.slice(room - 1)]
}
