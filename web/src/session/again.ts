import { useQueryClient } from '@tanstack/react-query'
import { useNavigate } from '@tanstack/react-router'
import { useState } from 'react'
import { toast } from '@/design/parts'
import { useProject } from '@/tenancy/me'
import { bodyOf, draftFrom } from './draft'
import { createSession, sessionInfoQuery, sessionQuery } from './queries'

/** Starts a session like one that was, at once. What the cluster refuses can be changed in the form. */
export function useAgain() {
  const client = useQueryClient()
  const go = useNavigate()
  const project = useProject()
  const [busy, setBusy] = useState('')
  const again = async (id: string) => {
    if (busy) return
    setBusy(id)
    try {
      const [s, info] = await Promise.all([client.fetchQuery(sessionQuery(id)), client.fetchQuery(sessionInfoQuery(id))])
      if (!s) return await go({ to: '/sessions/new', search: { from: id } })
      const made = await createSession(bodyOf(draftFrom(s, info), s.group_name || project))
      void client.invalidateQueries({ queryKey: ['session'] })
      await go({ to: '/sessions/$id', params: { id: made.sessionId } })
    } catch (err) {
      toast((err as Error).message, undefined, 12_000)
      await go({ to: '/sessions/new', search: { from: id } })
    } finally {
      setBusy('')
    }
  }
  return { again: (id: string) => void again(id), busy }
}
