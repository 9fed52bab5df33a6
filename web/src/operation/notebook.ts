import { appsOf, type Image } from '@/image/queries'

const notebooks = ['jupyterlab', 'jupyter']

export const notebookOf = (i: Image): string | undefined => notebooks.find((n) => appsOf(i).includes(n))

/**
 * The image of a first notebook: the usual one, which the platform brings, else the first of those that are offered, which may be anybody's.
 * One that has to be loaded first is the last choice.
 */
export function firstImage(usual: Image | null | undefined, offered: Image[]): Image | undefined {
  const candidates = [...(usual ? [usual] : []), ...offered].filter(notebookOf)
  return candidates.find((i) => i.installed) ?? candidates[0]
}
