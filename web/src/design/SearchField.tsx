import { TextInput } from '@mantine/core'
import { useDebouncedCallback } from '@mantine/hooks'
import { useEffect, useRef, useState } from 'react'
import { Icon } from './icons'

/** Whether a text has what is searched for, in any case. */
export const holds = (text: string, q: string | undefined): boolean => !q || text.toLowerCase().includes(q.toLowerCase())

/** What a list is searched for. It lives in the address: what is typed goes there a moment later, and what changes there shows here. */
export function SearchField(p: { label: string; value: string | undefined; onFind: (text: string | undefined) => void; width?: number }) {
  const there = p.value ?? ''
  const [text, setText] = useState(there)
  const known = useRef(there)
  const find = useDebouncedCallback((q: string) => {
    known.current = q
    p.onFind(q || undefined)
  }, 200)
  useEffect(() => {
    if (there === known.current) return
    known.current = there
    setText(there)
  }, [there])
  return (
    <TextInput
      type="search"
      size="xs"
      w={p.width ?? 240}
      className="end"
      placeholder={p.label}
      aria-label={p.label}
      value={text}
      leftSection={<Icon name="search" size={14} />}
      onChange={(e) => {
        setText(e.currentTarget.value)
        find(e.currentTarget.value)
      }}
    />
  )
}
