import { Modal } from '@mantine/core'
import { useQuery } from '@tanstack/react-query'
import { useNavigate } from '@tanstack/react-router'
import { useEffect, useMemo, useState } from 'react'
import { Icon } from '@/design/icons'
import { KeyHint, StateBadge } from '@/design/parts'
import { foldersQuery } from '@/folder/queries'
import { searchSessionsQuery } from '@/session/queries'
import { useMe } from '@/tenancy/me'
import { t } from '@/words'
import { placesOf } from './places'

interface Item {
  key: string
  label: string
  icon: string
  hint?: string
  status?: string
  keys?: string
  run: () => void
}

/** Goes to anything, does anything. */
export function Palette({ open, onClose, actions }: { open: boolean; onClose: () => void; actions: Item[] }) {
  const [text, setText] = useState('')
  const [at, setAt] = useState(0)
  const me = useMe()
  const go = useNavigate()
  const sessions = useQuery({ ...searchSessionsQuery(text), enabled: open }).data
  const folders = useQuery({ ...foldersQuery, enabled: open }).data
  useEffect(() => {
    if (open) setText('')
  }, [open])
  useEffect(() => setAt(0), [text])

  const items = useMemo<Item[]>(() => {
    const word = text.trim().toLowerCase()
    const has = (s: string) => s.toLowerCase().includes(word)
    const out: Item[] = []
    for (const p of placesOf(me)) {
      if (has(t(p.word)))
        out.push({
          key: p.to,
          label: t(p.word),
          icon: p.icon,
          ...(p.keys ? { keys: p.keys } : {}),
          run: () => void go({ to: p.to as '/' }),
        })
    }
    for (const a of actions) if (has(a.label)) out.push(a)
    for (const s of sessions ?? []) {
      out.push({
        key: s.id,
        label: s.name,
        icon: 'sessions',
        status: s.status,
        run: () => void go({ to: '/sessions/$id', params: { id: s.id } }),
      })
    }
    for (const f of folders ?? []) {
      if (word && has(f.name))
        out.push({
          key: f.id,
          label: f.name,
          icon: 'folder',
          hint: t('nav.data'),
          run: () => void go({ to: '/data/$folder', params: { folder: f.id } }),
        })
    }
    return out.slice(0, 40)
  }, [text, me, actions, sessions, folders, go])

  const run = (i: Item | undefined) => {
    if (!i) return
    onClose()
    i.run()
  }
  return (
    <Modal
      opened={open}
      onClose={onClose}
      withCloseButton={false}
      padding={0}
      size={560}
      yOffset="12vh"
      centered={false}
      transitionProps={{ duration: 0 }}
      attributes={{ content: { 'aria-label': t('palette.label') } }}>
      <div className="palette">
        <input
          value={text}
          onChange={(e) => setText(e.currentTarget.value)}
          placeholder={t('palette.hint')}
          aria-label={t('palette.label')}
          data-autofocus
          autoFocus
          role="combobox"
          aria-expanded="true"
          aria-controls="palette-list"
          aria-activedescendant={items[at] ? `palette-${at}` : undefined}
          onKeyDown={(e) => {
            if (e.key === 'ArrowDown') {
              e.preventDefault()
              setAt((n) => Math.min(items.length - 1, n + 1))
            } else if (e.key === 'ArrowUp') {
              e.preventDefault()
              setAt((n) => Math.max(0, n - 1))
            } else if (e.key === 'Enter') {
              e.preventDefault()
              run(items[at])
            }
          }}
        />
        <ul id="palette-list" role="listbox" aria-label={t('palette.label')}>
          {items.map((i, n) => (
            <li
              key={i.key}
              id={`palette-${n}`}
              role="option"
              aria-selected={n === at}
              onMouseMove={() => setAt(n)}
              onClick={() => run(i)}
              ref={(el) => {
                if (n === at) el?.scrollIntoView({ block: 'nearest' })
              }}>
              <Icon name={i.icon} />
              <span className="cut">{i.label}</span>
              <span className="end row">
                {i.status && <StateBadge status={i.status} plain />}
                {i.hint}
                {i.keys && <KeyHint keys={i.keys} />}
              </span>
            </li>
          ))}
          {items.length === 0 && <li className="dim">{t('palette.none')}</li>}
        </ul>
      </div>
    </Modal>
  )
}
