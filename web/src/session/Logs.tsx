import { Button, Select, TextInput } from '@mantine/core'
import { useEffect, useMemo, useRef, useState } from 'react'
import { funcStream, Problem } from '@/api/http'
import { Icon } from '@/design/icons'
import { EmptyState, ErrorState, Skeleton } from '@/design/parts'
import { t } from '@/words'
import type { Kernel } from './queries'

/** Keeps this much of a log in the page; the whole is in the download. */
const most = 2_000_000
const shownLines = 5000

/* eslint-disable-next-line no-control-regex */
const escapes = /\u001b\[[0-9;?]*[A-Za-z]|\u001b\][^\u0007]*\u0007|\r(?!\n)/g

/** The log of a session: it is followed while the session lives, and is there when it has ended. */
export function Logs({ session, live, kernels, start = '' }: { session: string; live: boolean; kernels: Kernel[]; start?: string }) {
  const [kernel, setKernel] = useState(start)
  const [text, setText] = useState<string | null>(null)
  const [error, setError] = useState<unknown>(null)
  const [find, setFind] = useState('')
  const [following, setFollowing] = useState(true)
  const [turn, setTurn] = useState(0)
  const box = useRef<HTMLPreElement>(null)
  useEffect(() => {
    const stop = new AbortController()
    let got = 0
    let timer: ReturnType<typeof setTimeout> | undefined
    setText(null)
    setError(null)
    let all = ''
    let drawn = false
    const draw = () => {
      drawn = false
      if (!stop.signal.aborted) setText(all)
    }
    const size = new TextEncoder()
    const read = async (tries: number): Promise<void> => {
      try {
        await funcStream(
          `/session/${session}/logs`,
          { query: { follow: live, from: got, kernel_id: kernel || undefined }, signal: stop.signal },
          (part) => {
            got += size.encode(part).length
            all = (all + part).slice(-most)
            setError(null)
            tries = 0
            if (!drawn) {
              drawn = true
              requestAnimationFrame(draw)
            }
          },
        )
        if (!stop.signal.aborted) setText(all)
      } catch (err) {
        if (stop.signal.aborted) return
        // A broken stream goes on where it stopped.
        if (live && (!(err instanceof Problem) || err.passing))
          timer = setTimeout(() => void read(tries + 1), Math.min(10_000, 500 * 2 ** tries))
        if (tries > 1 || !live) setError(err)
      }
    }
    void read(0)
    const early = setTimeout(() => setText((old) => old ?? ''), 600)
    return () => {
      clearTimeout(early)
      clearTimeout(timer)
      stop.abort()
    }
  }, [session, live, kernel, turn])
  const lines = useMemo(() => (text ?? '').replace(escapes, '').split('\n'), [text])
  const hits = useMemo(() => (find ? lines.filter((l) => l.toLowerCase().includes(find.toLowerCase())) : lines), [lines, find])
  useEffect(() => {
    const el = box.current
    if (el && following && !find) el.scrollTop = el.scrollHeight
  }, [text, following, find])
  const save = () => {
    // The answer without the header would be JSON; what was read is the text itself.
    const a = document.createElement('a')
    a.href = URL.createObjectURL(new Blob([text ?? ''], { type: 'text/plain' }))
    a.download = `${session}.log`
    a.click()
    URL.revokeObjectURL(a.href)
  }
  return (
    <div>
      <div className="row wrap pad-line line-below">
        <TextInput
          size="xs"
          type="search"
          placeholder={t('logs.find')}
          aria-label={t('logs.find')}
          value={find}
          onChange={(e) => setFind(e.currentTarget.value)}
          leftSection={<Icon name="search" size={14} />}
        />
        {find && <span className="small dim">{t('logs.hits', { n: hits.length })}</span>}
        {kernels.length > 1 && (
          <Select
            size="xs"
            w={130}
            aria-label={t('kernel.title')}
            value={kernel || kernels[0]!.id}
            onChange={(v) => setKernel(v ?? '')}
            data={kernels.map((k) => ({ value: k.id, label: k.cluster_hostname }))}
          />
        )}
        <span className="end row">
          {live && (
            <button type="button" className="chip" aria-pressed={following} onClick={() => setFollowing(!following)}>
              {t('logs.follow')}
            </button>
          )}
          <Button size="compact-sm" onClick={save} disabled={!text} leftSection={<Icon name="download" size={14} />}>
            {t('do.download')}
          </Button>
        </span>
      </div>
      {error !== null && (
        <div className="pad-s">
          <ErrorState error={error} retry={() => setTurn((n) => n + 1)} />
        </div>
      )}
      {text === null ? (
        <div className="pad-m">
          <Skeleton />
        </div>
      ) : text === '' && error === null ? (
        <EmptyState
          title={live ? t('logs.empty.live') : t('logs.empty')}
          text={live ? t('logs.empty.text') : ''}
          cli={`berth session logs ${live ? '-f ' : ''}${session.slice(0, 8)}`}
        />
      ) : (
        <pre
          ref={box}
          className="mono logtext"
          tabIndex={0}
          aria-label={t('tab.logs')}
          onScroll={(e) => {
            const el = e.currentTarget
            setFollowing(el.scrollHeight - el.scrollTop - el.clientHeight < 24)
          }}>
          {hits.length > shownLines ? t('logs.cut', { n: shownLines }) + '\n' : ''}
          {hits.slice(-shownLines).join('\n')}
        </pre>
      )}
    </div>
  )
}
