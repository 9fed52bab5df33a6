import { queryOptions } from '@tanstack/react-query'
import { func } from '@/api/http'
import type {
  Folder as WireFolder,
  FolderEntry,
  FolderHosts,
  FolderItem,
  FolderShareList,
  InvitationList,
  InvitedUsers,
  Quota,
  Ticket,
} from '@/api/types'

export type { Quota } from '@/api/types'
export type Folder = FolderItem

export type FolderDetail = WireFolder

export const foldersQuery = queryOptions({
  queryKey: ['folder', 'list'],
  queryFn: () => func<Folder[]>('/folders'),
})
export const folderQuery = (id: string) =>
  queryOptions({ queryKey: ['folder', 'one', id], queryFn: () => func<FolderDetail>(`/folders/${encodeURIComponent(id)}`) })

export const hostsQuery = queryOptions({
  queryKey: ['folder', 'hosts'],
  staleTime: 30_000,
  queryFn: () => func<FolderHosts>('/folders/_/hosts'),
})

export const createFolder = (body: {
  name: string
  host?: string
  group?: string
  usage_mode?: string
  permission?: string
  cloneable?: boolean
}) => func<Folder>('/folders', { body })
export const renameFolder = (id: string, new_name: string) => func<null>(`/folders/${id}/rename`, { body: { new_name } })
export const trashFolder = (id: string) => func<null>(`/folders/${id}`, { method: 'DELETE' })
export const restoreFolder = (id: string) => func<null>('/folders/restore-from-trash-bin', { body: { vfolder_id: dashed(id) } })
export const purgeFolder = (id: string) => func<null>('/folders/delete-from-trash-bin', { body: { vfolder_id: dashed(id) } })
export const leaveFolder = (id: string) => func<unknown>(`/folders/${id}/leave`, { body: {} })

export function dashed(id: string): string {
  return id.length === 32 ? id.replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, '$1-$2-$3-$4-$5') : id
}

export type File = FolderEntry
export const filesQuery = (id: string, path: string) =>
  queryOptions({
    queryKey: ['folder', 'files', id, path],
    queryFn: ({ signal }) => func<{ items: File[]; truncated?: boolean }>(`/folders/${id}/files`, { query: { path }, signal }),
  })
export const makeDirectory = (id: string, path: string, exist_ok = false) =>
  func<unknown>(`/folders/${id}/mkdir`, { body: { path, parents: true, exist_ok } })
export const renameFile = (id: string, target_path: string, new_name: string) =>
  func<unknown>(`/folders/${id}/rename-file`, { body: { target_path, new_name } })
export const deleteFiles = (id: string, files: string[]) =>
  func<unknown>(`/folders/${id}/delete-files`, { method: 'DELETE', body: { files, recursive: true } })

/** The right to send a file; with `resume` to an upload that was begun before. */
export const askUpload = (id: string, path: string, size: number, resume?: string) =>
  func<Ticket>(`/folders/${id}/request-upload`, { body: { path, size, ...(resume ? { resume } : {}) } })
export const moveFile = (id: string, src: string, dst: string) => func<unknown>(`/folders/${id}/move-file`, { body: { src, dst } })

/** What the owner of a folder uses and may use on its host. */
export const quotaQuery = (folder: string) =>
  queryOptions({
    queryKey: ['folder', 'quota', folder],
    staleTime: 20_000,
    queryFn: () => func<Quota>('/folders/_/quota', { query: { id: dashed(folder) } }),
  })

/** An address from which the browser takes a file, or several things as an archive. */
export async function downloadAddress(id: string, files: string[], archive: boolean): Promise<string> {
  const t = archive
    ? await func<Ticket>(`/folders/${id}/request-download-archive`, { body: { files } })
    : await func<Ticket>(`/folders/${id}/request-download`, { body: { path: files[0] } })
  return `${t.url}${t.url.includes('?') ? '&' : '?'}token=${encodeURIComponent(t.token)}`
}

export type { Invitation } from '@/api/types'
export const invitationsQuery = queryOptions({
  queryKey: ['folder', 'invitations'],
  queryFn: async () => (await func<InvitationList>('/folders/invitations/list')).invitations,
})
export const sentQuery = queryOptions({
  queryKey: ['folder', 'sent'],
  queryFn: async () => (await func<InvitationList>('/folders/invitations/list-sent')).invitations,
})
export const invite = (id: string, perm: string, emails: string[]) =>
  func<InvitedUsers>(`/folders/${id}/invite`, { body: { perm, emails } })
export const acceptInvitation = (inv_id: string) => func<unknown>('/folders/invitations/accept', { body: { inv_id } })
export const declineInvitation = (inv_id: string) => func<unknown>('/folders/invitations/delete', { method: 'DELETE', body: { inv_id } })

export type { FolderShare as Share } from '@/api/types'
export const sharesQuery = (id: string) =>
  queryOptions({
    queryKey: ['folder', 'shares', id],
    queryFn: async () =>
      (await func<FolderShareList>('/folders/_/shared', { query: { vfolder_id: dashed(id) } })).shared.filter(
        (s) => s.vfolder_id.replace(/-/g, '') === id.replace(/-/g, ''),
      ),
  })
export const setShare = (id: string, user: string, perm: string | null) =>
  func<unknown>('/folders/_/sharing', { body: { vfolder_id: dashed(id), user_perm_list: [{ user_id: user, perm }] } })
