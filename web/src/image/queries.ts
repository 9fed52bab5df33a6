import { queryOptions } from '@tanstack/react-query'
import { gql } from '@/api/http'

export interface Image {
  id: string
  name: string
  project: string
  registry: string
  tag: string
  humanized_name: string
  architecture: string
  labels: { key: string; value: string }[]
  aliases: string[]
  size_bytes: number
  installed: boolean
  supported_accelerators: string[]
  resource_limits: { key: string; min: string | null; max: string | null }[]
  last_used_at: string | null
}

export const imagesQuery = queryOptions({
  queryKey: ['image', 'list'],
  staleTime: 30_000,
  queryFn: async () =>
    (
      await gql<{ images: Image[] }>(`query { images { id name project registry tag humanized_name architecture aliases size_bytes installed
    supported_accelerators last_used_at labels { key value } resource_limits { key min max } } }`)
    ).images,
})

/** How requests name an image. */
export function referenceOf(i: Image): string {
  return `${i.name}:${i.tag}`
}

export function label(i: Image, key: string): string {
  return i.labels.find((l) => l.key === key)?.value ?? ''
}

export function appsOf(i: Image): string[] {
  return label(i, 'ai.backend.service-ports')
    .split(',')
    .filter(Boolean)
    .map((p) => p.split(':')[0]!)
}

export function canBatch(i: Image): boolean {
  const f = label(i, 'ai.backend.features')
  return f === '' || f.split(' ').includes('batch')
}
