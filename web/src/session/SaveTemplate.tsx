import { Button, Popover, TextInput } from '@mantine/core'
import { useQueryClient } from '@tanstack/react-query'
import { useNavigate } from '@tanstack/react-router'
import { useState } from 'react'
import { Icon } from '@/design/icons'
import { ErrorState, toast } from '@/design/parts'
import { useProject } from '@/tenancy/me'
import { t } from '@/words'
import type { Draft } from './draft'
import { createTemplate, templateOf, templatesQuery } from './templates'

/** Keeps what a form says as a template. It stands in a form, so it is none. */
export function SaveTemplate({ of: d }: { of: Draft }) {
  const project = useProject()
  const client = useQueryClient()
  const go = useNavigate()
  const [open, setOpen] = useState(false)
  const [name, setName] = useState('')
  const [busy, setBusy] = useState(false)
  const [error, setError] = useState<unknown>(null)
  const save = () => {
    if (busy || !name.trim()) return
    setBusy(true)
    setError(null)
    createTemplate('session', JSON.stringify(templateOf(d, name.trim())), project)
      .then(() => {
        setOpen(false)
        toast(t('template.saved', { name: name.trim() }), { label: t('do.open'), run: () => void go({ to: '/templates' }) })
        void client.invalidateQueries({ queryKey: templatesQuery.queryKey })
      }, setError)
      .finally(() => setBusy(false))
  }
  return (
    <Popover opened={open} onChange={setOpen} position="top-end" width={280} trapFocus withinPortal>
      <Popover.Target>
        <Button leftSection={<Icon name="plus" size={14} />} onClick={() => setOpen(!open)}>
          {t('template.save')}
        </Button>
      </Popover.Target>
      <Popover.Dropdown>
        <div className="stack">
          <TextInput
            label={t('template.save.name')}
            value={name}
            onChange={(e) => setName(e.currentTarget.value)}
            data-autofocus
            name="template-name"
            onKeyDown={(e) => {
              if (e.key !== 'Enter') return
              e.preventDefault()
              e.stopPropagation()
              save()
            }}
          />
          {error !== null && <ErrorState error={error} />}
          <Button variant="filled" loading={busy} disabled={!name.trim()} onClick={save}>
            {t('template.save')}
          </Button>
        </div>
      </Popover.Dropdown>
    </Popover>
  )
}
