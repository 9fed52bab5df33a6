import { useSyncExternalStore } from 'react'
import { catalogue } from './catalogue'

export type Language = 'en' | 'ko'
export type Word = keyof typeof catalogue

const kept = 'berth.language'
let language: Language = initial()
const listeners = new Set<() => void>()

function initial(): Language {
  try {
    const saved = localStorage.getItem(kept)
    if (saved === 'en' || saved === 'ko') return saved
  } catch {
    // Storage may be forbidden; the browser's language counts then.
  }
  return typeof navigator !== 'undefined' && navigator.language?.startsWith('ko') ? 'ko' : 'en'
}

export function currentLanguage(): Language {
  return language
}

export function setLanguage(l: Language) {
  language = l
  document.documentElement.lang = l
  try {
    localStorage.setItem(kept, l)
  } catch {
    // It holds until the page is left.
  }
  for (const each of listeners) each()
}

/** Makes the component follow the language. */
export function useLanguage(): Language {
  return useSyncExternalStore(
    (l) => {
      listeners.add(l)
      return () => listeners.delete(l)
    },
    () => language,
  )
}

/** The text of a key. "{n|one|many}" chooses by the number n; "{n}" stands for a value. */
export function t(word: Word, values: Record<string, string | number> = {}): string {
  const text = catalogue[word][language === 'en' ? 0 : 1]
  return text.replace(/\{(\w+)(?:\|([^|}]*)\|([^}]*))?\}/g, (_, name: string, one?: string, many?: string) => {
    const v = values[name] ?? ''
    if (one === undefined) return String(v)
    return Number(v) === 1 ? one : (many ?? '')
  })
}

/** A word that is only known at run time; what the catalogue does not have is shown as it is. */
export function tAny(word: string, otherwise: string = word): string {
  return word in catalogue ? t(word as Word) : otherwise
}
