import { Button, Menu } from '@mantine/core'
import { t } from '@/words'
import { Icon } from './icons'
import { toast } from './parts'

export interface Request {
  method: string
  path: string
  body?: unknown
}

/** The request for a program, which goes to a manager with an API token. */
export function curlOf(r: Request): string {
  const out = [`curl -X ${r.method} "$BACKEND_ENDPOINT${r.path.replace(/["`$\\]/g, '\\$&')}"`, `-H "Authorization: Bearer $BERTH_TOKEN"`]
  if (r.body !== undefined) out.push(`-H 'Content-Type: application/json'`, `-d '${JSON.stringify(r.body).replace(/'/g, `'\\''`)}'`)
  return `# berth token create NAME makes BERTH_TOKEN\n${out.join(' \\\n  ')}`
}

const copy = (text: string) =>
  void navigator.clipboard.writeText(text).then(
    () => toast(t('copyas.copied'), undefined, 2000),
    (e: Error) => toast(e.message),
  )

/** Items of a menu that copy the same thing as a command and as a request. */
export function CopyAs({ cli, api }: { cli: string; api: Request }) {
  return (
    <>
      <Menu.Divider />
      <Menu.Label>{t('copyas.do')}</Menu.Label>
      <Menu.Item onClick={() => copy(cli)}>{t('copyas.cli')}</Menu.Item>
      <Menu.Item onClick={() => copy(curlOf(api))}>{t('copyas.api')}</Menu.Item>
      <Menu.Divider />
    </>
  )
}

/** The same with a button of its own. */
export function CopyAsMenu({ cli, api }: { cli: string; api: Request }) {
  return (
    <Menu position="bottom-end">
      <Menu.Target>
        <Button leftSection={<Icon name="copy" size={14} />}>{t('copyas.do')}</Button>
      </Menu.Target>
      <Menu.Dropdown>
        <Menu.Item onClick={() => copy(cli)}>{t('copyas.cli')}</Menu.Item>
        <Menu.Item onClick={() => copy(curlOf(api))}>{t('copyas.api')}</Menu.Item>
      </Menu.Dropdown>
    </Menu>
  )
}
