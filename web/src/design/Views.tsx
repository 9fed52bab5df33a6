import { Button, Menu, Modal, TextInput } from '@mantine/core'
import { useState, type FormEvent } from 'react'
import { t } from '@/words'
import { Icon } from './icons'

export interface View {
  name: string
  search: Record<string, string>
  hidden: string[]
}

const most = 30

function read(key: string): View[] {
  try {
    const all = JSON.parse(localStorage.getItem(key) ?? '[]') as View[]
    return Array.isArray(all) ? all.filter((v) => typeof v?.name === 'string' && typeof v.search === 'object') : []
  } catch {
    return []
  }
}

/** Views of a table that a person gave names: filters, order and columns. */
export function Views({ table, now, onOpen }: { table: string; now: Omit<View, 'name'>; onOpen: (v: View) => void }) {
  const key = `berth.views.${table}`
  const [all, setAll] = useState<View[]>(() => read(key))
  const [asking, setAsking] = useState(false)
  const [name, setName] = useState('')
  const keep = (views: View[]) => {
    setAll(views)
    try {
      localStorage.setItem(key, JSON.stringify(views.slice(-most)))
    } catch {
      // They hold until the page is left.
    }
  }
  const submit = (e: FormEvent) => {
    e.preventDefault()
    const called = name.trim()
    if (!called) return
    keep([...all.filter((v) => v.name !== called), { ...now, name: called }])
    setName('')
    setAsking(false)
  }
  return (
    <>
      <Menu position="bottom-end" width={240}>
        <Menu.Target>
          <button type="button" className="chip" aria-label={t('views.title')}>
            {t('views.title')}
            <Icon name="down" size={10} />
          </button>
        </Menu.Target>
        <Menu.Dropdown>
          {all.length === 0 && <Menu.Label>{t('views.none')}</Menu.Label>}
          {all.map((v) => (
            <Menu.Item
              key={v.name}
              onClick={() => onOpen(v)}
              rightSection={
                <span
                  className="copy"
                  title={t('do.remove.what', { what: v.name })}
                  onClick={(e) => {
                    e.stopPropagation()
                    keep(all.filter((x) => x.name !== v.name))
                  }}>
                  <Icon name="close" size={12} />
                </span>
              }>
              {v.name}
            </Menu.Item>
          ))}
          <Menu.Divider />
          <Menu.Item onClick={() => setAsking(true)}>{t('views.save')}</Menu.Item>
        </Menu.Dropdown>
      </Menu>
      <Modal opened={asking} onClose={() => setAsking(false)} title={t('views.save')}>
        <form className="stack" onSubmit={submit}>
          <TextInput
            label={t('views.name')}
            description={t('views.text')}
            value={name}
            onChange={(e) => setName(e.currentTarget.value)}
            maxLength={40}
            required
            data-autofocus
          />
          <div className="row to-end">
            <Button onClick={() => setAsking(false)}>{t('do.cancel')}</Button>
            <Button type="submit" variant="filled">
              {t('view.save')}
            </Button>
          </div>
        </form>
      </Modal>
    </>
  )
}
