import { Modal } from '@mantine/core'
import { useQuery, useQueryClient } from '@tanstack/react-query'
import { Suspense, useEffect, useState, type ReactNode } from 'react'
import { onExpired, Problem } from '@/api/http'
import { announce, follow } from '@/api/live'
import { ErrorState, Skeleton, Toasts } from '@/design/parts'
import { LoginForm } from '@/tenancy/LoginForm'
import { loginQuery } from '@/tenancy/login'
import { meQuery, useMe } from '@/tenancy/me'
import { setLanguage, t, useLanguage } from '@/words'

export function Mark({ size = 24 }: { size?: number }) {
  return <img src="/icon.svg" width={size} height={size} alt="" />
}

/** Shows the console to whoever is logged in, and asks the others. A login that expires is asked for above the page, which keeps its state. */
export function Gate({ children }: { children: ReactNode }) {
  const lang = useLanguage()
  const client = useQueryClient()
  const state = useQuery(loginQuery)
  if (state.isPending) return null
  // A look that fails later is no reason to take the page away.
  if (state.isLoadingError) {
    return (
      <main className="login">
        <Mark size={40} />
        <ErrorState error={state.error} retry={() => void state.refetch()} />
      </main>
    )
  }
  if (!state.data.authenticated) {
    return (
      <main className="login">
        <Mark size={40} />
        <h1>{t('login.title')}</h1>
        <LoginForm onDone={() => void client.resetQueries()} />
        <button type="button" className="copy self-center" onClick={() => setLanguage(lang === 'en' ? 'ko' : 'en')}>
          {lang === 'en' ? '한국어' : 'English'}
        </button>
      </main>
    )
  }
  return (
    <>
      <Following />
      <Suspense
        fallback={
          <div className="page">
            <Skeleton />
          </div>
        }>
        <WithMe>{children}</WithMe>
        <Toasts />
      </Suspense>
    </>
  )
}

/** Follows changes from the login on, not from the page on: what a page asks for once the stream is open need not be asked for again. */
function Following() {
  const client = useQueryClient()
  useEffect(() => follow(client, announce), [client])
  return null
}

function WithMe({ children }: { children: ReactNode }) {
  const client = useQueryClient()
  const me = useMe()
  const [asking, setAsking] = useState(false)
  useEffect(() => onExpired(() => setAsking(true)), [])
  // What went wrong after the login was accepted; null while the login itself is asked for.
  const [problem, setProblem] = useState<unknown>(null)
  const done = async () => {
    const before = me.email
    try {
      await client.cancelQueries({ queryKey: meQuery.queryKey }) // one that began before the login would say that nobody is logged in
      const after = await client.fetchQuery({ ...meQuery, staleTime: 0 })
      // Another person must not see what the page still shows of the first.
      if (after.email !== before) location.reload()
    } catch (err) {
      // A login that has ended already is asked for again.
      setProblem(err instanceof Problem && err.status === 401 ? null : err)
      return
    }
    setProblem(null)
    setAsking(false)
    void client.invalidateQueries()
  }
  return (
    <>
      {children}
      <Modal
        opened={asking}
        onClose={() => {}}
        withCloseButton={false}
        closeOnEscape={false}
        closeOnClickOutside={false}
        title={t('login.again')}
        zIndex={500}>
        <p className="soft under-12">{t('login.again.text')}</p>
        {problem === null ? (
          <LoginForm as={me.email} onDone={() => void done()} />
        ) : (
          <ErrorState what={t('login.again.unread')} error={problem} retry={() => void done()} />
        )}
      </Modal>
    </>
  )
}
