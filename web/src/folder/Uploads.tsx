import { useQueryClient } from '@tanstack/react-query'
import { Button } from '@mantine/core'
import { useEffect, useRef, useState } from 'react'
import { bytes } from '@/design/amounts'
import { Icon } from '@/design/icons'
import { t } from '@/words'
import { Fill, toast } from '@/design/parts'
import { useMe } from '@/tenancy/me'
import { forget, matching, taken, unfinishedOf, useUnfinished } from './unfinished'
import { again, clearDone, drop, goOn, onUploaded, useTransfers } from './uploads'

/** Uploads under way, in a corner of every page. */
export function Uploads() {
  const all = useTransfers()
  const client = useQueryClient()
  const me = useMe()
  const [open, setOpen] = useState(true)
  useEffect(() => unfinishedOf(me.uuid), [me.uuid])
  useEffect(() => {
    let timer: ReturnType<typeof setTimeout> | undefined
    const stop = onUploaded((folder) => {
      clearTimeout(timer)
      timer = setTimeout(() => {
        for (const what of ['files', 'one', 'quota']) void client.invalidateQueries({ queryKey: ['folder', what, folder] })
      }, 300)
    })
    return () => {
      stop()
      clearTimeout(timer)
    }
  }, [client])
  const going = all.filter((x) => x.state === 'going' || x.state === 'waiting')
  useEffect(() => {
    if (going.length === 0) return
    const ask = (e: BeforeUnloadEvent) => e.preventDefault()
    window.addEventListener('beforeunload', ask)
    return () => window.removeEventListener('beforeunload', ask)
  }, [going.length])
  if (all.length === 0) return <Interrupted />
  const failed = all.filter((x) => x.state === 'failed')
  const sent = all.reduce((n, x) => n + x.sent, 0)
  const size = all.reduce((n, x) => n + x.size, 0)
  const done = all.length - going.length - failed.length
  return (
    <section className="toasts at-left" aria-label={t('upload.title')}>
      <Interrupted inside />
      <div className="toast block pad-s">
        <div className="row">
          <Icon name={going.length ? 'upload' : failed.length ? 'warn' : 'check'} />
          <strong className="grow medium" role="status">
            {going.length
              ? t('upload.going', { done, all: all.length })
              : failed.length
                ? t('upload.failed', { n: failed.length })
                : t('upload.done', { n: done })}
          </strong>
          <button type="button" className="copy" aria-expanded={open} aria-label={t('do.more')} onClick={() => setOpen(!open)}>
            <Icon name={open ? 'down' : 'up'} size={14} />
          </button>
          {!going.length && (
            <button
              type="button"
              className="copy"
              aria-label={t('do.close')}
              onClick={() => {
                clearDone()
                for (const f of failed) drop(f.id)
              }}>
              <Icon name="close" size={14} />
            </button>
          )}
        </div>
        {going.length > 0 && (
          <div className="meter between-8">
            <Fill part={size ? sent / size : 0} />
          </div>
        )}
        {open && (
          <div className="scroll-s">
            {[...failed, ...going].slice(0, 60).map((x) => (
              <div key={x.id} className="row small pad-row">
                <span className={`grow cut${x.error ? ' bad' : ''}`} title={x.error || x.path}>
                  {x.path}
                  {x.error && `: ${x.error}`}
                </span>
                <span className="dim">
                  {bytes(x.sent)} / {bytes(x.size)}
                </span>
                {x.state === 'failed' && (
                  <button type="button" className="copy" aria-label={t('do.retry')} onClick={() => again(x.id)}>
                    <Icon name="refresh" size={14} />
                  </button>
                )}
                <button type="button" className="copy" aria-label={t('do.cancel.what', { what: x.path })} onClick={() => drop(x.id)}>
                  <Icon name="close" size={12} />
                </button>
              </div>
            ))}
          </div>
        )}
      </div>
    </section>
  )
}

/** Uploads that a closed browser cut: their files are asked for again, and each goes on where it was. */
function Interrupted({ inside = false }: { inside?: boolean }) {
  const cut = useUnfinished()
  const pick = useRef<HTMLInputElement>(null)
  const pickDir = useRef<HTMLInputElement>(null)
  if (cut.length === 0) return null
  const chosen = (list: FileList | null) => {
    const found = matching(cut, [...(list ?? [])])
    if (found.length === 0) return toast(t('upload.match'))
    taken(found.map((x) => x.of))
    goOn(found)
  }
  const note = (
    <div className="toast block pad-s">
      <div className="row">
        <Icon name="upload" />
        <strong className="grow medium" role="status">
          {t('upload.interrupted', { n: cut.length })}
        </strong>
      </div>
      <p className="small soft between-8">{t('upload.choose.text')}</p>
      <div className="scroll-s">
        {cut.slice(0, 60).map((u) => (
          <div key={u.folder + u.path} className="row small">
            <span className="grow cut" title={`${u.folderName}/${u.path}`}>
              {u.folderName}/{u.path}
            </span>
            <span className="dim">{bytes(u.size)}</span>
            <button
              type="button"
              className="copy"
              aria-label={t('upload.forget', { what: u.path })}
              onClick={() => forget(u.folder, u.path)}>
              <Icon name="close" size={12} />
            </button>
          </div>
        ))}
      </div>
      <div className="row over-8">
        <Button size="compact-sm" variant="filled" onClick={() => pick.current?.click()}>
          {t('upload.choose', { n: cut.length })}
        </Button>
        {cut.some((u) => u.path.includes('/')) && (
          <Button size="compact-sm" onClick={() => pickDir.current?.click()}>
            {t('upload.dir')}
          </Button>
        )}
      </div>
      <input
        ref={pick}
        type="file"
        multiple
        hidden
        data-testid="resume-files"
        onChange={(e) => {
          chosen(e.currentTarget.files)
          e.currentTarget.value = ''
        }}
      />
      <input
        ref={pickDir}
        type="file"
        multiple
        hidden
        {...{ webkitdirectory: '' }}
        onChange={(e) => {
          chosen(e.currentTarget.files)
          e.currentTarget.value = ''
        }}
      />
    </div>
  )
  return inside ? (
    note
  ) : (
    <section className="toasts at-left" aria-label={t('upload.title')}>
      {note}
    </section>
  )
}
