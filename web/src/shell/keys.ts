import { useEffect } from 'react'

/** Whether a key belongs to a field that somebody writes in. */
export function writing(e: KeyboardEvent): boolean {
  const at = e.target as HTMLElement | null
  return !!at?.closest?.('input:not([type="checkbox"]), textarea, select, [contenteditable="true"], .xterm')
}

/**
 * Keys of the whole console. "g h" is one key after the other. Keys with Mod hold everywhere, others not where somebody writes.
 */
export function useKeys(table: Record<string, () => void>) {
  useEffect(() => {
    let first = ''
    let at = 0
    const on = (e: KeyboardEvent) => {
      const mod = e.metaKey || e.ctrlKey
      const key = (mod ? 'mod+' : '') + (e.key.length === 1 ? e.key.toLowerCase() : e.key)
      if (!mod && writing(e)) return
      if (e.altKey) return
      const both = first && Date.now() - at < 900 ? `${first} ${key}` : ''
      const run = (both && table[both]) || table[key]
      first = key
      at = Date.now()
      if (!run) return
      e.preventDefault()
      first = ''
      run()
    }
    window.addEventListener('keydown', on)
    return () => window.removeEventListener('keydown', on)
  }, [table])
}
