import { createRootRoute, createRoute, createRouter, lazyRouteComponent, type SearchSchemaInput } from '@tanstack/react-router'
import { Cli, EmptyState, ErrorState, Skeleton } from '@/design/parts'
import { t } from '@/words'
import { Shell } from './Shell'

const text = (v: unknown): string | undefined => (typeof v === 'string' && v !== '' ? v : typeof v === 'number' ? String(v) : undefined)
type Texts<K extends string> = { [P in K]?: string }

/** Takes the named texts of an address and drops what it does not know. */
function texts<K extends string>(...names: K[]) {
  return (s: Texts<K> & SearchSchemaInput): Texts<K> => {
    const out: Texts<K> = {}
    for (const n of names) {
      const v = text((s as Record<string, unknown>)[n])
      if (v !== undefined) out[n] = v
    }
    return out
  }
}

const root = createRootRoute({
  component: Shell,
  notFoundComponent: () => (
    <div className="page">
      <EmptyState title={t('error.nopage')} text={t('error.nopage.text')} action={<Cli line="berth --help" />} />
    </div>
  ),
})
const page = <P extends string, K extends string = never>(
  path: P,
  load: () => Promise<Record<string, unknown>>,
  name: string,
  ...names: K[]
) =>
  createRoute({
    getParentRoute: () => root,
    path,
    validateSearch: texts<K>(...names),
    component: lazyRouteComponent(load as () => Promise<Record<string, () => React.JSX.Element>>, name),
  })

const routes = [
  page('/', () => import('@/operation/HomePage'), 'HomePage'),
  page('/sessions', () => import('@/session/SessionsPage'), 'SessionsPage', 'status', 'type', 'owner', 'q', 'order', 'peek'),
  page('/sessions/new', () => import('@/session/NewSessionPage'), 'NewSessionPage', 'image', 'from', 'folder', 'template'),
  page('/sessions/$id', () => import('@/session/SessionPage'), 'SessionPage', 'tab', 'from', 'path', 'kernel'),
  createRoute({
    getParentRoute: () => root,
    path: '/data',
    validateSearch: (s: { tab?: string; q?: string; make?: boolean } & SearchSchemaInput): { tab?: string; q?: string; make?: boolean } => {
      const out: { tab?: string; q?: string; make?: boolean } = {}
      const q = text(s.q)
      if (q) out.q = q
      const tab = text(s.tab)
      if (tab) out.tab = tab
      if (s.make) out.make = true
      return out
    },
    component: lazyRouteComponent(() => import('@/folder/FoldersPage'), 'FoldersPage'),
  }),
  page('/data/$folder', () => import('@/folder/FolderPage'), 'FolderPage', 'path', 'file'),
  page('/templates', () => import('@/session/TemplatesPage'), 'TemplatesPage', 'q', 'open'),
  page('/images', () => import('@/image/ImagesPage'), 'ImagesPage', 'q', 'order'),
  page('/profile', () => import('@/tenancy/ProfilePage'), 'ProfilePage', 'tab'),
  page('/admin/cluster', () => import('@/resource/ClusterPage'), 'ClusterPage', 'tab', 'group', 'agent', 'q', 'show', 'order'),
  page('/admin/users', () => import('@/tenancy/UsersPage'), 'UsersPage', 'q', 'status', 'order'),
  page('/admin/users/import', () => import('@/tenancy/ImportPage'), 'ImportPage'),
  page('/admin/keypairs', () => import('@/tenancy/KeypairsPage'), 'KeypairsPage', 'q', 'status', 'order'),
  page('/admin/projects', () => import('@/tenancy/ProjectsPage'), 'ProjectsPage', 'tab', 'q', 'status', 'order'),
  page('/admin/policies', () => import('@/resource/PoliciesPage'), 'PoliciesPage', 'tab', 'q'),
  page('/admin/offers', () => import('@/resource/OffersPage'), 'OffersPage', 'tab', 'q'),
  page('/admin/usage', () => import('@/operation/UsagePage'), 'UsagePage', 'tab', 'month', 'by', 'figure', 'of'),
  page('/admin/audit', () => import('@/operation/AuditPage'), 'AuditPage', 'q', 'result', 'action', 'who', 'domain', 'from', 'until'),
  page('/admin/settings', () => import('@/operation/SettingsPage'), 'SettingsPage'),
  page('/design', () => import('@/design/DesignPage'), 'DesignPage'),
] as const

export const router = createRouter({
  routeTree: root.addChildren([...routes]),
  defaultPreload: 'intent',
  scrollRestoration: true,
  scrollToTopSelectors: ['#main'],
  defaultPendingMs: 150,
  defaultPendingComponent: () => (
    <div className="page">
      <Skeleton />
    </div>
  ),
  defaultErrorComponent: ({ error, reset }) => (
    <div className="page">
      <ErrorState error={error} what={t('error.page')} retry={reset} />
    </div>
  ),
})

declare module '@tanstack/react-router' {
  interface Register {
    router: typeof router
  }
}
