import { keepPreviousData, queryOptions } from '@tanstack/react-query'
import type { Image as WireImage, ImageNode, KVPair, ResourceLimit, Told } from '@/api/graph'
import { gql, quoted } from '@/api/http'
import type { Page } from '@/design/paged'

/** A part of an image's description in which texts stand by names. */
type Named<T, Names extends keyof T, Maybe extends keyof T = never> = Told<T, Names, Maybe>[]

export type Image = Told<
  WireImage,
  'id' | 'name' | 'registry' | 'tag' | 'humanized_name' | 'architecture' | 'aliases' | 'size_bytes' | 'installed' | 'supported_accelerators'
> & {
  labels: Named<KVPair, 'key' | 'value'>
  resource_limits: Named<ResourceLimit, 'key', 'min' | 'max'>
  /** Lists do not say it. */
  last_used_at?: WireImage['last_used_at']
}

type Node = Omit<Image, 'id' | 'last_used_at'> & Told<ImageNode, 'row_id'>

const nodeFields = `row_id name registry tag humanized_name architecture aliases size_bytes installed supported_accelerators
  labels { key value } resource_limits { key min max }`

/** The condition of a list of images: a part of the reference or of an alias, in any case. */
export function imageFilter(q: string | undefined): string {
  if (!q) return ''
  const like = quoted(`%${q.replace(/[%_]/g, '\\$&')}%`)
  return `name ilike ${like} | alias ilike ${like}`
}

/** A page of images. */
export async function listImages(filter: string, order: string, limit: number, offset: number, signal?: AbortSignal): Promise<Page<Image>> {
  const d = await gql<{ image_nodes: { count: number; edges: { node: Node }[] } }>(
    `query($f: String, $s: String, $l: Int!, $o: Int!) {
      image_nodes(scope_id: "system:", filter: $f, order: $s, first: $l, offset: $o) { count edges { node { ${nodeFields} } } } }`,
    { f: filter || null, s: order, l: limit, o: offset },
    signal,
  )
  return { total: d.image_nodes.count, items: d.image_nodes.edges.map(({ node: { row_id, ...i } }) => ({ ...i, id: row_id })) }
}

/** How many images are offered before somebody searches. */
const offered = 60

/** Images to choose from: those that were used last, or those that match. */
export const imageChoicesQuery = (q: string) =>
  queryOptions({
    queryKey: ['image', 'choices', q],
    staleTime: 30_000,
    placeholderData: keepPreviousData,
    queryFn: ({ signal }) => listImages(imageFilter(q), '-last_used_at,name', offered, 0, signal),
  })

/** One image by its reference, its alias or its id; null when there is none. */
export const imageQuery = (reference: string) =>
  queryOptions({
    queryKey: ['image', 'one', reference],
    staleTime: 30_000,
    queryFn: async ({ signal }) =>
      (
        await gql<{ image: Image | null }>(
          `query($r: String!) { image(reference: $r, architecture: null) { id name registry tag humanized_name architecture aliases
            size_bytes installed supported_accelerators last_used_at labels { key value } resource_limits { key min max } } }`,
          { r: reference },
          signal,
        )
      ).image,
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
