import { queryOptions } from '@tanstack/react-query'
import { func, funcText } from '@/api/http'
import type { TemplateClusterDocument, TemplateSessionDocument, Template as WireTemplate } from '@/api/types'
import { amount } from '@/design/amounts'
import { blank, sizeText, type Draft } from './draft'

export type TemplateKind = 'session' | 'cluster'

/** A template with its document, whose kind its type tells. */
export type Template = Omit<WireTemplate, 'template'> & { template: TemplateSessionDocument | TemplateClusterDocument }

/** The document of a template of sessions; null where it is one of clusters. */
export const sessionDocument = (t: Pick<Template, 'template'>) =>
  'nodes' in t.template.spec ? null : (t.template as TemplateSessionDocument)

export const kindOf = (t: Template): TemplateKind => (t.type === 'cluster' ? 'cluster' : 'session')

/** One's own templates, and those of one's projects. */
export const templatesQuery = queryOptions({
  queryKey: ['session', 'templates'],
  staleTime: 30_000,
  queryFn: async () => {
    const [one, many] = await Promise.all([
      func<Template[]>('/template/session', { query: { all: true } }),
      func<Template[]>('/template/cluster', { query: { all: true } }),
    ])
    return [...one, ...many].sort((a, b) => Number(b.is_owner) - Number(a.is_owner) || a.name.localeCompare(b.name))
  },
})

export const templateTextQuery = (kind: TemplateKind, id: string) =>
  queryOptions({ queryKey: ['session', 'template', id], queryFn: () => funcText(`/template/${kind}/${id}`, { query: { format: 'yaml' } }) })

export const createTemplate = (kind: TemplateKind, payload: string, group: string) =>
  func<{ id: string }[]>(`/template/${kind}`, { body: { payload, group } })
export const replaceTemplate = (kind: TemplateKind, id: string, payload: string) =>
  func<unknown>(`/template/${kind}/${id}`, { method: 'PUT', body: { payload } })
export const deleteTemplate = (kind: TemplateKind, id: string) => func<unknown>(`/template/${kind}/${id}`, { method: 'DELETE' })

export const startTemplate = (t: Template, name: string) =>
  func<{ sessionId: string; sessionName: string }>(`/session/_/${kindOf(t) === 'cluster' ? 'create-cluster' : 'create-from-template'}`, {
    body: { template_id: t.id, name, enqueueOnly: true },
  })

/** What a draft of a session is as a template. What belongs to one session alone (name, start, priority) is left out. */
export function templateOf(d: Draft, name: string): TemplateSessionDocument {
  const resources: Record<string, string> = {}
  for (const [slot, n] of Object.entries(d.slots)) if (n > 0) resources[slot] = slot === 'mem' ? sizeText(n) : String(n)
  const env = d.env.filter((e) => e.name)
  const run = {
    ...(d.bootstrap.trim() ? { bootstrap: d.bootstrap } : {}),
    ...(d.type === 'batch' && d.command ? { startupCommand: d.command } : {}),
  }
  return {
    apiVersion: '6',
    kind: 'taskTemplate',
    metadata: { name },
    spec: {
      sessionType: d.type,
      kernel: {
        image: d.image,
        ...(d.architecture ? { architecture: d.architecture } : {}),
        ...(env.length ? { environ: Object.fromEntries(env.map((e) => [e.name, e.value])) } : {}),
        ...(Object.keys(run).length ? { run } : {}),
      },
      ...(d.group ? { scaling_group: d.group } : {}),
      ...(d.mounts.length ? { mounts: Object.fromEntries(d.mounts.map((m) => [m.name, m.target])) } : {}),
      resources,
    },
  }
}

const units: Record<string, number> = { k: 1 << 10, m: 1 << 20, g: 1 << 30, t: 2 ** 40 }

/** An amount as templates write it: "4g", "2". */
export function amountOf(text: string): number {
  const m = /^([0-9.]+)\s*([kmgt])?i?b?$/i.exec(text.trim())
  return m ? Number(m[1]) * (units[m[2]?.toLowerCase() ?? ''] ?? 1) : (amount(text) ?? 0)
}

/** The draft that a template of sessions begins. Folders are named by their owner's names. */
export function draftOf(t: TemplateSessionDocument, folders: { id: string; name: string }[]): Partial<Draft> {
  const { kernel, sessionType, resources = {}, mounts = {} } = t.spec
  return {
    image: kernel?.image ?? '',
    architecture: kernel?.architecture ?? '',
    type: sessionType === 'batch' ? 'batch' : 'interactive',
    command: kernel?.run?.startupCommand ?? '',
    bootstrap: kernel?.run?.bootstrap ?? '',
    env: Object.entries(kernel?.environ ?? {}).map(([name, value]) => ({ name, value })),
    group: t.spec.scaling_group ?? blank.group,
    preset: '',
    slots: Object.fromEntries(Object.entries(resources).map(([k, v]) => [k, amountOf(String(v))])),
    mounts: Object.entries(mounts).map(([name, target]) => ({
      id: folders.find((f) => f.name === name)?.id ?? name,
      name,
      target: target === name || target === `/home/work/${name}` ? '' : target,
    })),
  }
}
