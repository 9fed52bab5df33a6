import { Menu } from '@mantine/core'
import { useMemo, useState } from 'react'
import { t } from '@/words'
import type { Column } from './DataTable'
import { Icon } from './icons'

function read(key: string): string[] {
  try {
    const all = JSON.parse(localStorage.getItem(key) ?? '[]') as unknown
    return Array.isArray(all) ? all.filter((x): x is string => typeof x === 'string') : []
  } catch {
    return []
  }
}

/** Which columns a person sees; the choice is kept in this browser. The first two, name and state, stay. */
export function useColumns<T>(table: string, all: Column<T>[]) {
  const key = `berth.columns.${table}`
  const [hidden, set] = useState<string[]>(() => read(key))
  const hide = (ids: string[]) => {
    set(ids)
    try {
      if (ids.length) localStorage.setItem(key, JSON.stringify(ids))
      else localStorage.removeItem(key)
    } catch {
      // It holds until the page is left.
    }
  }
  const shown = useMemo(() => all.filter((c, i) => i < 2 || !hidden.includes(c.id)), [all, hidden])
  const chooser = (
    <Menu position="bottom-end">
      <Menu.Target>
        <button type="button" className="chip" aria-label={t('table.columns')}>
          {t('table.columns')}
          <Icon name="down" size={10} />
        </button>
      </Menu.Target>
      <Menu.Dropdown>
        {all.slice(2).map((c) => {
          const on = !hidden.includes(c.id)
          return (
            <Menu.CheckboxItem key={c.id} checked={on} onChange={() => hide(on ? [...hidden, c.id] : hidden.filter((x) => x !== c.id))}>
              {c.title}
            </Menu.CheckboxItem>
          )
        })}
        {hidden.length > 0 && (
          <>
            <Menu.Divider />
            <Menu.Item onClick={() => hide([])}>{t('table.columns.all')}</Menu.Item>
          </>
        )}
      </Menu.Dropdown>
    </Menu>
  )
  return { shown, chooser, hidden, hide }
}
